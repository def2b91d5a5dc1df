"""Every demo with its defaults: each claim holds, on one rank, on an odd number, and on the four of the site's page."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from minitrain.runtime.demo import play
from minitrain.runtime.listing import demos
from tests.conftest import DEMO_RANKS

MODULES = [module for module, _ in demos()]
COMMITTED = Path(__file__).parents[1] / "docs" / "claims.json"


def perform(world, module):
    rows, _ = play(world, import_module(module).demo, {})
    return rows


@pytest.mark.parametrize("size", DEMO_RANKS)
@pytest.mark.parametrize("module", MODULES)
def test_every_claim_holds(ranks, module, size):
    rows = ranks(size).run(perform, module)[0]
    assert rows, "a demo without a claim shows nothing"
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken
    if size == 4:
        assert all(row.holds for row in rows), "four ranks are enough for every claim"


def test_demos_say_in_one_line_what_they_show():
    for module, line in demos():
        assert 20 < len(line) <= 120 and line.endswith("."), f"{module}: {line!r}"


@pytest.mark.parametrize("module", MODULES)
def test_the_page_of_claims_is_up_to_date(ranks, module):
    """`make claims` rewrites docs/claims.json."""
    committed = [claim for claim in json.loads(COMMITTED.read_text())["claims"] if claim["module"] == module]
    rows = [row.to_json() for row in ranks(4).run(perform, module)[0]]
    for now, then in zip(rows, committed, strict=True):
        same = ("what", "formula", "predicted", "unit", "source", "how", "relation")
        assert {key: now[key] for key in same} == {key: then[key] for key in same}
