"""The first messages arrive, in every order that works; the order that does not is named by line."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import receive, send
from minitrain.matrix_product import first_messages
from minitrain.ranks import Ranks


def received(world, name, members=None):
    group = None if members is None else dist.new_group(members)
    if members is not None and world.rank not in members:
        return None
    mine = torch.tensor([100 + world.rank, 7])
    kept = mine.clone()
    result = getattr(first_messages, name)(mine, group)
    assert torch.equal(mine, kept), "what is given away must stay as it is"
    assert result.data_ptr() != mine.data_ptr()
    return result.tolist()


@pytest.mark.parametrize("size", (1, 2, 3))
def test_everyone_gets_the_right_tensor(ranks, size):
    assert ranks(size).run(received, "relay") == [[100, 7]] * size
    for name in ("shift_in_turn", "shift_at_once"):
        assert ranks(size).run(received, name) == [[100 + (rank - 1) % size, 7] for rank in range(size)]


def test_ranks_count_within_the_group(ranks):
    for name in ("shift_in_turn", "shift_at_once"):
        assert ranks(4).run(received, name, [1, 2, 3]) == [None, [103, 7], [101, 7], [102, 7]]
    assert ranks(4).run(received, "relay", [1, 3]) == [None, [101, 7], None, [101, 7]]


def both_send_first(world):
    partner = 1 - world.rank
    send(torch.ones(1), to=partner).wait()
    receive(torch.empty(1), source=partner).wait()


def test_the_deadlock_is_named_by_line():
    with Ranks(2, device="cpu", timeout=1.0) as pool:
        with pytest.raises(RuntimeError, match=re.escape("send(torch.ones(1)")) as caught:
            pool.run(both_send_first)
        assert "test_first_messages.py" in str(caught.value)
        assert pool.run(received, "relay") == [[100, 7]] * 2, "fresh ranks take their place"
