"""The lesson of `minitrain.pipeline_parallel.executor`: each schedule's bubble, and the gradients of one device."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Literal

from torch import Tensor

from minitrain.comm import VirtualClock, World
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel.one_device import OneDevice, gpt, tokens
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.action_observers import on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.drawing import draw_run
from minitrain.pipeline_parallel.schedules import SCHEDULES

# F, I and W of a chunk in virtual seconds. W ≤ F ≤ I, as the formulas of zero bubble want it, and all different, so
# that no two can be mistaken for each other; dyadic, so that no sum rounds.
TIMES = (Fraction(1), Fraction(3, 2), Fraction(1, 2))
HUANG, ZERO = "Huang et al. 2019, §2.3", "Qi et al. 2023"
OF_ZERO, TABLE = "b/(m(F+I+W)+b), b =", f"{ZERO}, table 2 and appendix H"
# schedule -> of what the bubble is claimed, the formula of the text, and its source
LAWS = {
    "gpipe": ("1f1b, and of gpipe,", "(p−1)/(m+p−1)", HUANG),
    "1f1b": ("1f1b, and of gpipe,", "(p−1)/(m+p−1)", HUANG),
    "interleaved": ("interleaved", "(p−1)/(v·m+p−1)", "derived"),
    "zb-h1": ("zb-h1", f"{OF_ZERO} (p−1)(F+I) − (min(m, p)−1)W", TABLE),
    "zb-h2": ("zb-h2", f"{OF_ZERO} (p−1)(F+I) − (min(m, 2p−1)−1)W", TABLE),
    "zb-v": ("zb-v", f"{OF_ZERO} (p−1)I − (min(m, 2p−1)−p)W for m ≥ p", f"derived; 0 for F = I = W: {ZERO}, §6"),
}
Name = Literal["naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v"]


def demo(world: World, schedule: Name = "1f1b") -> list[Claim]:
    """Runs all schedules on real ranks; the table shows their bubbles, and that gradients are those of one device.

    Args:
        schedule: Which one is drawn; all are run.
    """
    rows, p = Rows(), world.size
    for name in (*LAWS, "naive"):
        count = -(-8 // p) * p if name == "interleaved" else 8
        plan = SCHEDULES[name](p, count, 2 if name in ("interleaved", "zb-v") else 1)
        one = OneDevice(gpt(world, 2 * p), *tokens(world, count))
        stages = splitting.split(one.model, splitting.evenly(one.model, plan.stages))
        mine = [stages[number] for number in plan.stages_of(world.rank)]
        loss, spans = step(plan, mine, one)
        if name == schedule:
            title = f"{schedule}: {p} ranks, {count} micro-batches"
            world.figure(partial(draw_run, spans, plan, title, "virtual seconds"))
        if name in LAWS:
            of, formula, source = LAWS[name]
            what = f"bubble of {of} over the time of a step" + (", v = 2" if name == "interleaved" else "")
            idle, busy = bubbles.idle_and_busy(spans)
            rows.add(what, formula, theory(plan), idle / (idle + busy), "1", source, case=name, how="virtual clock")
        what = "gradient elements of this rank, and the loss, that differ from one device's, all schedules"
        source = f"{HUANG}, for the mean; derived for the bits"
        rows.add(what, "0", 0, one.unlike(mine, loss), "1", source, case=name, how="compared")
    return rows.claims()


def step(schedule: Schedule, mine: list[splitting.Stage], one: OneDevice) -> tuple[Tensor | None, list[Span]]:
    """A step on the virtual clock: the mean loss, on the last rank, and the actions of all ranks."""
    clock = VirtualClock()
    pipeline = Pipeline(mine, schedule, one.model.loss, watch=on_virtual_clock(clock, TIMES))
    with clock:
        loss = pipeline.step(one.inputs, one.targets)
    return loss, bubbles.actions_of(clock.timeline.gather().spans)


def theory(schedule: Schedule) -> float:
    """The bubble over the time of a step; the formulas of zero bubble are of a rank's time over all its chunks."""
    p, m, v = schedule.ranks, schedule.microbatches, schedule.chunks
    if schedule.name in ("gpipe", "1f1b", "interleaved"):
        return float(costs.bubble_over_total(p, m, v))
    f, i, w = (v * time for time in TIMES)
    law = {"zb-h1": costs.zero_bubble_h1, "zb-h2": costs.zero_bubble_h2, "zb-v": costs.zero_bubble_v}
    bubble = law[schedule.name](p, m, f, i, w)
    return float(bubble / (costs.ideal_time(m, f, i, w) + bubble))
