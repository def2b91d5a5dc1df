"""Every benchmark runs, and all ranks say the same: what was compared, and with what. Which is faster is no matter."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from minitrain.benchmarks.compare import Comparison
from minitrain.checkpointing.full.memory import ROOT
from minitrain.composition.settings import Model
from minitrain.models import GPTConfig

TINY = GPTConfig(vocabulary=11, positions=4, layers=2, hidden=4, heads=1)
# benchmark: (arguments that make it small, ranks, the number of its rows on these)
SMALL: dict[str, tuple[dict[str, Any], int, int]] = {
    "checkpointing": ({"elements": 1000}, 2, 2),
    "collectives": ({"sizes": [1024, 4096]}, 3, 4),
    "composition": ({"model": Model(layers=4, hidden=16, heads=4, positions=8, tied=False), "batch": 4}, 2, 18),
    "context_parallel": ({"sizes": (4, 12, 8)}, 3, 6),  # without Ulysses, which cannot divide the heads
    "mixture_of_experts": ({"experts": (2, 3), "sizes": (8, 16)}, 2, 12),
    "optimizers": ({"config": TINY}, 2, 4),
    "recomputation": ({"config": TINY, "batch": 1}, 2, 4),
}
SLOW = {"composition": pytest.mark.slow("trains in nine layouts, ours and torch's")}


def measured(world, name):
    """A benchmark on very small tensors."""
    return import_module(f"minitrain.benchmarks.{name}").measure(world, **SMALL[name][0], repeats=1)


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in SMALL])
def test_every_row_says_what_and_against_what(ranks, name):
    before, (_, size, count) = set(ROOT.glob("minitrain-*")), SMALL[name]
    rows, *others = ranks(size).run(measured, name)
    assert len(rows) == count
    assert all(row.what and row.against and row.ours > 0 and row.theirs > 0 for row in rows)
    assert all([each.ours for each in other] == [row.ours for row in rows] for other in others)
    assert set(ROOT.glob("minitrain-*")) <= before, "nothing is left in memory"


def test_ratios_and_targets():
    speed = Comparison("w", ours=2.0, theirs=3.0, against="a", speed=True, target=1.5)
    cost = Comparison("w", ours=2.0, theirs=1.0, against="a", speed=False, target=1.5)
    assert (speed.ratio, speed.reached) == (1.5, True)
    assert (cost.ratio, cost.reached) == (2.0, False)
    assert Comparison("w", 1.0, 1.0, "a").reached is None
