"""The hash is SplitMix64's, and gives every id its owner; ids out of 64 bits are refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.lessons.recommender.click import python_owner
from minitrain.recommender.hashing import GOLDEN, as_ids, mix, owner

KEYS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=30)


def test_mix_is_splitmix64():
    # The generator's published first numbers from the seeds 0 and 1234567.
    states = torch.tensor([0, GOLDEN, 1234567])
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 6457827717110365317]
    assert [number % 2**64 for number in mix(states).tolist()] == expected


@given(KEYS, st.integers(1, 9))
def test_owner_is_that_of_unlimited_integers(keys, servers):
    assert owner(torch.tensor(keys), servers).tolist() == [python_owner(key, servers) for key in keys]


def test_whatever_holds_64_bits_is_an_id():
    assert as_ids("ids", [2**63 - 1, -(2**63)]).tolist() == [2**63 - 1, -(2**63)]
    assert as_ids("ids", torch.tensor([[2**64 - 1]], dtype=torch.uint64)).tolist() == [[-1]]
    small = as_ids("ids", torch.tensor([3], dtype=torch.uint8))
    assert (small.dtype, small.tolist()) == (torch.int64, [3])
    assert as_ids("ids", []).dtype == torch.int64


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2**63], "id 9223372036854775808 has more than 64 bits"),
        ([1, 2.5], "2.5 is no id"),
        ([True], "True is no id"),
        (torch.tensor([1.0]), "torch.float32"),
        (torch.tensor([True]), "torch.bool"),
    ],
)
def test_what_is_no_id_is_refused(ids, message):
    with pytest.raises(ValueError, match=f"users: .*{message}"):
        as_ids("users", ids)
