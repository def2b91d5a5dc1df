"""How benchmarks compare: in turns, by medians, ratios the right way up. What they measure is no matter for a test."""

from __future__ import annotations

import time

from minitrain.benchmarks import collectives
from minitrain.benchmarks.__main__ import show
from minitrain.benchmarks.compare import Comparison, interleaved


def test_ratios_and_targets():
    speed = Comparison("w", ours=2.0, theirs=3.0, against="a", speed=True, target=1.5)
    cost = Comparison("w", ours=2.0, theirs=1.0, against="a", speed=False, target=1.5)
    assert (speed.ratio, speed.reached) == (1.5, True)
    assert (cost.ratio, cost.reached) == (2.0, False)
    assert Comparison("w", 1.0, 1.0, "a").reached is None


def take_turns(world):
    order = []

    def slow():
        order.append("slow")
        time.sleep(0.02)

    medians = interleaved(world, {"slow": slow, "quick": lambda: order.append("quick")}, repeats=3, warmups=1)
    return order, medians


def test_ways_take_turns_and_all_ranks_agree_on_the_medians(ranks):
    (order, medians), (_, others) = ranks(2).run(take_turns)
    assert order == ["slow", "quick", "quick", "slow"] * 2
    assert medians == others
    assert medians["slow"].wall > 0.02
    assert medians["slow"].cpu < medians["slow"].wall, "sleeping takes no processor time"


def test_the_benchmark_of_collectives_runs(ranks, capsys, size=3):
    rows = ranks(size).run(collectives.measure, [1024, 4096], repeats=3)[0]
    assert [row.what for row in rows[:2]] == [
        f"{verb}, 1 KB, {size} ranks" for verb in ("all_reduce", "reduce_scatter")
    ]
    assert len(rows) == 4 and all(row.ours > 0 and row.theirs > 0 for row in rows)
    show(rows)
    assert f"all_reduce, 4 KB, {size} ranks" in capsys.readouterr().out
