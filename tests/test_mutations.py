"""Ten mutations, drawn by the tree: each turns the claim false, or breaks the test, that it names.

`make mutations` tries all of them. That each still changes the code that it names is checked for all.
"""

from __future__ import annotations

import pytest

from tests.drawn import drawn
from tests.mutations import Mutation, all_mutations, changed, find
from tests.mutations.trial import try_it

ALL = all_mutations()
DRAWN = drawn(ALL, 10, "mutations")


def name_of(mutation: Mutation) -> str:
    return f"{ALL.index(mutation)}-{mutation.symbol}"


def test_each_mutation_changes_what_it_names():
    for mutation in ALL:
        module, function = find(mutation.symbol)
        assert changed(module, function.__code__, mutation) != function.__code__
        if mutation.test:
            assert mutation.why and not mutation.claim, mutation
        else:
            assert mutation.demo and mutation.claim, mutation


def test_nearly_all_mutations_are_found_by_a_claim():
    # No demo is about texts, the trainer and the claim itself.
    elsewhere = ("minitrain.data.", "minitrain.trainer.", "minitrain.lessons.claims.")
    of_demos = [mutation for mutation in ALL if not mutation.symbol.startswith(elsewhere)]
    assert sum(not mutation.test for mutation in of_demos) >= 0.9 * len(of_demos)


@pytest.mark.slow("each runs a demo or a test with a mistake in it")
@pytest.mark.parametrize("mutation", DRAWN, ids=name_of)
def test_a_drawn_mutation_is_found(ranks, mutation):
    trial = try_it(ranks(4), mutation)
    assert trial.found, f"{trial.mutation} was found by {trial.told}"
