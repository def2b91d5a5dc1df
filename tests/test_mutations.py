"""Six mutations, drawn by the tree: each turns the claim false, or breaks the test, that it names.

`make mutations` tries all of them. That each still changes the code that it names is checked for all.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.drawn import drawn
from tests.mutations import Mutation, all_mutations, changed, find, meant_by
from tests.mutations.trial import try_it

ALL = all_mutations()
ROOT = Path(__file__).parents[1]
ON_THE_PAGE = json.loads((ROOT / "docs" / "claims.json").read_text())["claims"]
DRAWN = drawn(ALL, 6, "mutations")


def name_of(mutation: Mutation) -> str:
    return f"{ALL.index(mutation)}-{mutation.symbol}"


def test_each_mutation_changes_what_it_names():
    for mutation in ALL:
        module, function = find(mutation.symbol)
        assert changed(module, function.__code__, mutation) != function.__code__
        if mutation.test:
            file, _, test = mutation.test.partition("::")
            assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text("utf-8") or not test, mutation
        else:
            assert all(mutation.claims), mutation


def test_each_claim_is_named_by_a_mutation():
    """And by itself: a name that several claims of the demo begin with names none of them."""
    claims: dict[str, list[str]] = {}
    for claim in ON_THE_PAGE:
        claims.setdefault(claim["module"], []).append(claim["what"])
    meant = [
        (mutation.demo, meant_by(name, claims.get(mutation.demo, []))) for mutation in ALL for name in mutation.claims
    ]
    named = {(demo, found[0]) for demo, found in meant if len(found) == 1}
    every = [(claim["module"], claim["what"]) for claim in ON_THE_PAGE]
    missing = [f"{module}: {what}" for module, what in every if (module, what) not in named]
    assert not missing, "\n".join(["no mutation names:", *missing])


@pytest.mark.slow("each runs a demo or a test with a mistake in it")
@pytest.mark.parametrize("mutation", DRAWN, ids=name_of)
def test_a_drawn_mutation_is_found(ranks, mutation):
    trial = try_it(ranks(4), mutation)
    assert trial.found, f"{trial.mutation} was found by {trial.told}"
