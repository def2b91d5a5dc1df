"""naive, ring, tree, halving and native: every verb gives the right result on any ranks, shape and dtype."""

from __future__ import annotations

import pytest

from tests.collectives import verbs

MODULES = ("naive", "ring", "tree", "halving", "native")
CASES = [(name, size) for name in MODULES for size in verbs.WORLD_SIZES]


@pytest.mark.parametrize(("name", "size"), CASES)
def test_every_verb_gives_what_one_rank_would(ranks, name, size):
    assert ranks(size).run(verbs.wrong, name) == [[]] * size


@pytest.mark.parametrize("members", [[0], [1, 2], [0, 1, 3]])
@pytest.mark.parametrize("name", MODULES)
def test_ranks_are_those_within_the_group(ranks, name, members):
    assert ranks(4).run(verbs.wrong_in_subgroup, name, members) == [[]] * 4


@pytest.mark.parametrize(("name", "size"), CASES)
def test_sums_are_torchs_within_rounding_and_the_same_bits_everywhere(ranks, name, size):
    results = ranks(size).run(verbs.random_sum, name)
    assert len({bits for bits, _, _ in results}) == 1
    assert all(outside == 0 for _, outside, _ in results)
    if size <= 2:
        assert all(difference == 0 for _, _, difference in results)


@pytest.mark.parametrize(("name", "size"), [case for case in CASES if case[0] != "native"])
def test_each_rank_sends_what_theory_says(ranks, name, size):
    assert ranks(size).run(verbs.miscounted, name, name) == [[]] * size


def test_the_reduce_scatter_of_the_tree_is_that_of_halving(ranks):
    assert ranks(6).run(verbs.miscounted, "tree", "halving")[0][0][0] == "all_reduce"  # differs, as it should
    for differ in ranks(6).run(verbs.miscounted, "tree", "halving"):
        assert {verb for verb, *_ in differ} == {"all_reduce"}


@pytest.mark.parametrize("name", ["naive", "ring", "tree", "native"])
def test_a_parameter_is_overwritten_behind_autograds_back(ranks, name):
    assert ranks(3).run(verbs.parameter, name) == [(True, None, True, [6.0])] * 3


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("shape", "all_reduce: the shape of `tensor` differs between ranks: (4, 6) on rank 0,1, (4, 5) on rank 2"),
        ("dtype", "all_reduce: the dtype of `tensor` differs between ranks: torch.float32 on rank 0,1"),
        ("gaps", "all_reduce: `tensor` is not contiguous on rank 2"),
        ("gaps everywhere, unchecked", "all_reduce: `tensor` of shape (4, 6) and strides (1, 4) is not contiguous"),
        ("unknown source", "broadcast: source=3 is no rank of this group of 3; use 0 to 2"),
        ("two sources", "broadcast: `source` differs between ranks: [0, 1, 0] in rank order"),
    ],
)
@pytest.mark.parametrize("name", ["naive", "ring", "tree", "native"])
def test_every_rank_gets_the_same_error_and_nothing_hangs(ranks, name, how, says):
    for said in ranks(3).run(verbs.misuse, name, how):
        assert said.startswith(says)
