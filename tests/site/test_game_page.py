"""The game on the page judges as the referee in Python: the same memory, the same speed, the same refusals."""

from __future__ import annotations

import random

import pytest

from minitrain.composition.layout_settings import ScheduleName
from minitrain.composition.settings import Layout, problem
from minitrain.costs.memory import ROOM
from minitrain.planning.full import time_model
from minitrain.planning.full.game import ROUNDS
from tests.site.conftest import ROOT
from tests.site.javascript import answers

import game  # isort: skip  (of docs/hooks, whose path the conftest adds)

pytestmark = pytest.mark.usefixtures("without_shapes")  # a simulation calls small functions very often
FILE = ROOT / "docs" / "javascripts" / "referee.js"
SCHEDULES: list[ScheduleName] = ["1f1b", "gpipe", "interleaved", "zb-h1", "zb-h2"]  # those that the page offers
BYTES, SPEED = 1e-4, 1e-3  # what the page states


def drawn(draw: random.Random, name: str) -> Layout:
    """A layout of a round that the trainer takes, whether or not it fits into memory."""
    at = ROUNDS[name]
    gpus, batch = at.layout.ranks, at.steps.batch
    while True:
        tp, cp = draw.choice([1, 2, 4, 8]), draw.choice([1, 1, 1, 2, 4])
        pp = draw.choice([ranks for ranks in range(1, 129) if gpus % ranks == 0])
        dp, rest = divmod(gpus, tp * pp * cp)
        sequences = draw.choice([1, 1, 2, 4])
        if rest or batch % (dp * sequences):
            continue
        layout = Layout(
            dp, pp, tp, cp=cp, zero=draw.choice([0, 1, 2, 3] if pp == 1 else [0, 1]),
            sequence_parallel=tp > 1 and draw.random() < 0.5, schedule=draw.choice(SCHEDULES),
            chunks=draw.choice([2, 3, 4, 7]), microbatches=batch // dp // sequences,
            recompute=draw.choice(["none", "selective", "full"]),
        )  # fmt: skip
        # Schedules of thousands of micro-batches take Python long; one of them for each round is drawn below.
        if layout.stages * layout.microbatches < 3000 and problem(at.model, layout, at.steps) is None:
            return layout


def chosen(layout: Layout) -> dict:
    names = ("dp", "pp", "cp", "tp", "zero", "schedule", "chunks", "microbatches", "recompute")
    return {name: getattr(layout, name) for name in names} | {"sequence": layout.sequence_parallel}


def referee(name: str, layout: Layout) -> tuple[float, float]:
    """Bytes and tokens per second that Python finds, also where they do not fit."""
    at = ROUNDS[name]
    step = time_model.step_time(at.model, layout, at.steps, time_model.fitted(at.machine)).step
    return time_model.most_held(at.model, layout, at.steps), at.steps.batch * at.model.sizes.positions / step


@pytest.mark.slow("simulates two hundred pipelines")
def test_both_referees_agree(tmp_path):
    draw, rounds = random.Random(2021), game.rounds(ROOT / "minitrain")
    cases = [(name, at.layout) for name, at in ROUNDS.items()]
    cases += [(name, drawn(draw, name)) for name in ROUNDS for _ in range(40)]
    calls = [("judge", (rounds[name], chosen(layout))) for name, layout in cases]
    calls += [("problem", arguments) for _, arguments in calls]
    found = answers([FILE], calls, tmp_path)
    assert found[len(cases) :] == [""] * len(cases)
    seen = set()
    for (name, layout), theirs in zip(cases, found, strict=False):
        held, tokens = referee(name, layout)
        assert theirs["most"] == pytest.approx(held, rel=BYTES), (name, layout)
        assert theirs["tokens"] == pytest.approx(tokens, rel=SPEED), (name, layout)
        room = (1 - ROOM) * ROUNDS[name].machine.size
        assert theirs["fits"] == (held <= room) or abs(held / room - 1) < 0.01
        seen.add((layout.schedule, theirs["fits"]) if layout.pp > 1 else ("", theirs["fits"]))
    assert {name for name, _ in seen} == {"", *SCHEDULES} and {fits for _, fits in seen} == {True, False}


def test_the_page_says_how_close_it_is():
    page = (ROOT / "docs" / "game.md").read_text("utf-8")
    assert f"within {100 * SPEED:g} %" in page and f"within {100 * BYTES:g} %" in page
