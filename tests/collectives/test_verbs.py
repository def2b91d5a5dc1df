"""naive, ring, tree, halving and native, both forms: every verb is right on any ranks, shape and dtype."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from minitrain import collectives
from minitrain.collectives import halving
from tests.collectives import verbs

FULL = ("full.ring", "full.native")
OTHERS = ("__init__", "hierarchical", "all_to_all")  # two levels, and a verb of its own
SMALL = sorted(file.stem for file in Path(collectives.__path__[0]).glob("*.py") if file.stem not in OTHERS)
MODULES = (*FULL, *SMALL)


def takes(name, size):
    """The small form of halving wants a power of two."""
    return name != "halving" or size in (1, 2, 4)


CASES = [(name, size) for name in MODULES for size in verbs.WORLD_SIZES if takes(name, size)]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_verb_gives_what_one_rank_would(ranks, name, size):
    assert ranks(size).run(verbs.wrong, name) == [[]] * size


SUBGROUPS = [(name, members) for name in MODULES for members in ([0], [1, 2], [0, 1, 3]) if takes(name, len(members))]


@pytest.mark.parametrize(("name", "members"), SUBGROUPS)
def test_ranks_are_those_within_the_group(ranks, name, members):
    assert ranks(4).run(verbs.wrong_in_subgroup, name, members) == [[]] * 4


@pytest.mark.parametrize(("name", "size"), CASES)
def test_sums_are_torchs_within_rounding_and_the_same_bits_everywhere(ranks, name, size):
    results = ranks(size).run(verbs.random_sum, name)
    assert len({bits for bits, _, _ in results}) == 1
    assert all(outside == 0 for _, outside, _ in results)
    if size <= 2:
        assert all(difference == 0 for _, _, difference in results)


@pytest.mark.parametrize("name", FULL)
def test_every_rank_gets_the_same_error_and_nothing_hangs(ranks, name):
    ranks(3).run(verbs.misuse, name)


def refused(world):
    tensor = torch.ones(5)
    with pytest.raises(AssertionError, match="3 ranks are not a power of two; use a ring"):
        halving.all_reduce(tensor)
    dist.barrier()  # nothing was sent, so the ranks can still talk
    return tensor.tolist()


def test_halving_refuses_three_ranks_before_anything_is_sent(ranks):
    assert ranks(3).run(refused) == [[1.0] * 5] * 3
