"""Ten mutations, drawn anew each time: each turns the claim false, or breaks the test, that it names.

`make mutations` tries all of them.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.mutations import all_mutations, changed, find
from tests.mutations.trial import try_it

ALL = all_mutations()
SEED = int(os.environ.get("MUTATIONS_SEED") or random.randrange(1000))
DRAWN = random.Random(SEED).sample(range(len(ALL)), min(10, len(ALL)))


@pytest.mark.parametrize("number", range(len(ALL)), ids=lambda number: f"{number}-{ALL[number].symbol}")
def test_a_mutation_changes_what_it_names(number):
    mutation = ALL[number]
    module, function = find(mutation.symbol)
    assert changed(module, function.__code__, mutation) != function.__code__
    if mutation.test:
        assert mutation.why and not mutation.claim
    else:
        assert mutation.demo and mutation.claim


def test_nearly_all_mutations_are_found_by_a_claim():
    assert sum(not mutation.test for mutation in ALL) >= 0.9 * len(ALL)


@pytest.mark.parametrize("place", range(len(DRAWN)))
def test_a_drawn_mutation_is_found(ranks, place):
    trial = try_it(ranks(4), ALL[DRAWN[place]])
    assert trial.found, f"MUTATIONS_SEED={SEED}: {trial.mutation} was found by {trial.told}"
