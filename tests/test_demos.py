"""Every demo with its defaults: each claim holds, of a quarter of them on three ranks or one, as drawn.

That it holds on four ranks, and claims what the site's page shows, is for the tour (test_tour.py); that it holds on
GPUs, for tests/second_device.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minitrain.lessons.demo import demo_of, play
from minitrain.lessons.listing import demos
from minitrain.ranks import Ranks
from tests.conftest import check_shapes
from tests.drawn import drawn
from tests.second_device import missing

MODULES = [module for module, _ in demos()]
DOCS = Path(__file__).parents[1] / "docs"
ON_THE_PAGE = json.loads((DOCS / "claims.json").read_text())["claims"]
REHEARSED = 2  # ranks
every_demo = pytest.mark.parametrize("module", MODULES)
# An eighth on one rank, and an eighth on three.
DRAWN = drawn(MODULES, len(MODULES) // 4, "demos on one rank or three")
ON_ONE = drawn(DRAWN, len(DRAWN) // 2, "demos on one rank")
UNDRAWN = pytest.mark.undrawn("on another number of ranks")
CASES = [
    pytest.param(module, size, marks=() if module in DRAWN and (size == 1) == (module in ON_ONE) else UNDRAWN)
    for module in MODULES
    for size in (1, 3)
]
minutes = pytest.mark.slow("all demos take minutes; `make test CHAPTER=zero` runs those of a chapter")


def perform(world, module):
    if module.startswith("minitrain.planning."):  # a search calls small functions a million times
        check_shapes(world, False)
    return play(world, demo_of(module), {})[0]


@minutes
@pytest.mark.parametrize(("module", "size"), CASES)
def test_every_claim_holds(ranks, module, size):
    found = ranks(size).run(perform, module)
    rows = found[0]
    assert rows, "a demo without a claim shows nothing"
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)
    assert len(rows) <= 6


def test_demos_say_in_one_line_what_they_show():
    for module, line in demos():
        assert 20 < len(line) <= 120 and line.endswith("."), f"{module}: {line!r}"


@pytest.fixture(scope="module")
def rehearsing():
    with Ranks(REHEARSED, device="cpu", rehearse="nccl") as ranks:
        ranks.run(check_shapes, False)  # above they are checked
        yield ranks


@minutes
@pytest.mark.skipif(not missing(), reason="tests/second_device rehearses them, on GPUs")
@every_demo
def test_with_nccl_it_would_run(rehearsing, module):
    # The ranks call `play` itself, so that the rules that break, which it prints, name lines of the demo.
    rows, _ = rehearsing.run(play, demo_of(module), {})[0]
    assert rows[-1].claim.what == "rules of NCCL that this run would break"
    broken = [row.to_json() for row in rows if row.holds is False]
    assert not broken, str(broken)


def test_the_page_says_what_is_rehearsed():
    said = f"Tests [rehearse](#a-rehearsal-for-gpus) every demo on {REHEARSED} ranks, and none breaks any of the rules"
    assert said in " ".join((DOCS / "running.md").read_text(encoding="utf-8").split())
