"""Every demo with its defaults: each claim holds, on one rank, on an odd number, and on the four of the site's page.

Then each is rehearsed, on two ranks: with NCCL it would run, too.
"""

from __future__ import annotations

import json
from pathlib import Path

import jaxtyping
import pytest

from minitrain.comm.timeline import Timeline
from minitrain.lessons.demo import demo_of, play
from minitrain.lessons.listing import demos, marks_of
from minitrain.ranks import Ranks
from tests.conftest import DEMO_RANKS

MODULES = [module for module, _ in demos()]
DOCS = Path(__file__).parents[1] / "docs"
ON_THE_PAGE = json.loads((DOCS / "claims.json").read_text())["claims"]
REHEARSED = 2  # ranks


def what_is_claimed(claim):
    return {key: claim[key] for key in ("what", "formula", "predicted", "unit", "source", "how", "relation")}


def on_the_page(module):
    # Some predictions are what one device computes, whose last digits differ from processor to processor, as do those
    # of normal random numbers. The page shows six digits.
    claims = [what_is_claimed(claim) for claim in ON_THE_PAGE if claim["module"] == module]
    return [{**claim, "predicted": to_six_digits(claim["predicted"])} for claim in claims]


def to_six_digits(predicted):
    return pytest.approx(predicted, rel=1e-6) if isinstance(predicted, float) else predicted


def perform(world, module, shapes_checked):
    """On three ranks shapes are checked too, as in all other tests; a third of the time goes there."""
    jaxtyping.config.update("jaxtyping_disable", not shapes_checked)
    world.timeline = Timeline()
    try:
        rows, _ = play(world, demo_of(module), {})
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
    return rows, [mark for mark, there in (("picture", world.draw), ("timeline", world.timeline.spans)) if there]


@pytest.mark.parametrize("size", DEMO_RANKS)
@pytest.mark.parametrize("module", MODULES)
def test_every_claim_holds(ranks, module, size):
    found = ranks(size).run(perform, module, size == 3)
    rows = found[0][0]
    assert rows, "a demo without a claim shows nothing"
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)
    if size == 4:
        assert all(row.holds for row in rows), "four ranks are enough for every claim"
        drawn = {mark for _, marks in found for mark in marks}
        assert drawn == set(marks_of(module)), "the list says what a demo can draw"
        claimed = [what_is_claimed(row.to_json()) for row in rows]
        assert claimed == on_the_page(module), "`make claims` rewrites docs/claims.json"
    key = [row.claim.what for row in rows if row.claim.key]
    assert min(3, len(rows)) <= len(key) <= 6, key
    # Those that other numbers of ranks make, too, are key there, too; a record from before has no `key`.
    recorded = {claim["what"]: claim for claim in ON_THE_PAGE if claim["module"] == module}
    others = [row.claim for row in rows if row.claim.what in recorded]
    assert all(claim.key == recorded[claim.what].get("key", claim.key) for claim in others)


def test_demos_say_in_one_line_what_they_show():
    for module, line in demos():
        assert 20 < len(line) <= 120 and line.endswith("."), f"{module}: {line!r}"


# The rehearsal of every demo under NCCL's rules.


def without_shapes(world):
    """Shapes are checked in the runs above."""
    jaxtyping.config.update("jaxtyping_disable", True)


@pytest.fixture(scope="module")
def rehearsing():
    with Ranks(REHEARSED, device="cpu", rehearse="nccl") as ranks:
        ranks.run(without_shapes)
        yield ranks


@pytest.mark.parametrize("module", MODULES)
def test_with_nccl_it_would_run(rehearsing, module):
    # The ranks call `play` itself, so that the rules that break, which it prints, name lines of the demo.
    rows, _ = rehearsing.run(play, demo_of(module), {})[0]
    assert rows[-1].claim.what == "rules of NCCL that this run would break"
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)


def test_the_page_says_what_is_rehearsed():
    said = f"Tests [rehearse](#a-rehearsal-for-gpus) every demo on {REHEARSED} ranks, and none breaks any of the rules"
    assert said in " ".join((DOCS / "running.md").read_text(encoding="utf-8").split())
