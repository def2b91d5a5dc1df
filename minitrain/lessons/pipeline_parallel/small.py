"""Claims of the demos of `gpipe` and `one_f_one_b`: bytes, micro-batches held, the bubble, and equal gradients.

A small form has no `watch` as the `Pipeline` has. So the stage itself, which is passed in, lets virtual time pass and
counts graphs: both forms are observed from outside, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel.executor import SAMPLES, SEQ, Graphs, OneDevice, gpt, tokens
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.drawing import KINDS, draw_run

Step = Callable[..., Tensor | None]  # the `step` of a small form
FORWARD, BACKWARD = bubbles.FORWARD, bubbles.BACKWARD + bubbles.WEIGHT


class Observed(nn.Module):
    """A stage whose forward and backward take virtual time, and whose graphs are counted.

    Args:
        stage: The module that it runs.
        number: Which stage it is.
        clock: Passes on.
    """

    def __init__(self, stage: nn.Module, number: int, clock: VirtualClock):
        super().__init__()
        self.stage, self.number, self.clock, self.graphs = stage, number, clock, Graphs()
        self.micro_batches = 0

    def forward(self, x: Tensor) -> Tensor:
        micro_batch, self.micro_batches = self.micro_batches, self.micro_batches + 1
        y = self.graphs.mark(self.stage(x))
        self.work("F", micro_batch, float(FORWARD))
        return _Backward.apply(y, lambda: self.work("B", micro_batch, float(BACKWARD)))

    def work(self, kind: Any, micro_batch: int, seconds: float) -> None:
        self.clock.work(seconds, str(Action(self.number, kind, micro_batch)), KINDS[kind][0])


class _Backward(torch.autograd.Function):
    """Calls something when backward begins."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, called: Any) -> Tensor:
        ctx.called = called
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.called()
        return gradients[0], None


class Run:
    """One step of a small form under all instruments.

    Args:
        world: This rank.
        step: The small form's.
        one: The model, and what one device makes of it.

    Attributes:
        sent: Bytes that this rank sent.
        held: The most graphs that were alive on this rank.
        spans: The actions of all ranks on the virtual clock.
        gradients: Those of this rank's stage, by their names in the model.
        unlike: How many of their elements, and the loss, are not those of one device.
    """

    def __init__(self, world: World, step: Step, one: OneDevice):
        one.model.zero_grad()
        stages = splitting.split(one.model, splitting.evenly(one.model, world.size))
        mine, clock, ledger = stages[world.rank], VirtualClock(), Ledger()
        stage = Observed(mine, world.rank, clock)
        template = torch.empty(SAMPLES, SEQ, one.model.config.hidden, device=world.device)
        with clock, ledger:
            loss = step(stage, one.inputs, one.targets, one.model.loss, template)
        self.sent, self.held = ledger.sent, stage.graphs.most
        self.unlike = one.unlike([mine], loss)
        self.gradients = {name: parameter.grad for name, parameter in mine.named_in_model()}
        every = gather_objects(bubbles.actions_of(clock.timeline.spans))
        self.spans: list[Span] = [span for theirs in every for span in theirs]


def demo_of(world: World, step: Step, schedule: Schedule, hidden: int) -> list[Claim]:
    """The claims on a small form; `schedule` is the same order for the `Pipeline`."""
    rank, ranks, microbatches, name = world.rank, world.size, schedule.microbatches, schedule.name
    one = OneDevice(gpt(world, 2 * ranks, hidden), *tokens(world, microbatches))
    run = Run(world, step, one)
    world.figure(
        partial(
            draw_run, run.spans, schedule, f"{name}: {ranks} ranks, {microbatches} micro-batches", "virtual seconds"
        )
    )

    boundary = 4 * SAMPLES * SEQ * hidden  # bytes of a micro-batch's activations, and of their gradients
    sent = costs.sent([boundary] * (ranks - 1), ranks, microbatches, rank)
    held, most = {
        "gpipe": ("m", costs.gpipe_in_flight(microbatches)),
        "1f1b": ("min(m, n−r)", costs.one_f_one_b_in_flight(ranks, microbatches, rank)),
    }[name]
    idle, busy = bubbles.idle_and_busy(run.spans)
    return [
        Claim(
            "small form: bytes sent by this rank r in a step, activations of A bytes",
            "m(2 − [r = 0] − [r = n−1]) · A",
            sent.bytes,
            run.sent,
            "B",
            f"{bubbles.NARAYANAN}, §3.2",
            key=True,
        ),
        Claim(
            "small form: micro-batches held at most on this rank r: live graphs",
            held,
            most,
            run.held,
            "1",
            "Huang et al. 2019, §2.3" if name == "gpipe" else f"{bubbles.NARAYANAN}, §2.2.1",
            key=True,
        ),
        Claim(
            "small form: bubble over the time of the work",
            "(n−1)/m",
            float(costs.bubble_over_ideal(ranks, microbatches)),
            idle / busy,
            "1",
            f"{bubbles.NARAYANAN}, §2.2.1",
            "virtual clock",
            key=True,
        ),
        *same_numbers_and_times(world, run, schedule, one),
    ]


def same_numbers_and_times(world: World, run: Run, schedule: Schedule, one: OneDevice) -> list[Claim]:
    """Claims that one device and the `Pipeline` make the same gradients, and that the simulator knows all times."""
    one.model.zero_grad()
    stage = splitting.split(one.model, splitting.evenly(one.model, world.size))[world.rank]
    Pipeline([stage], schedule, one.model.loss).step(one.inputs, one.targets)
    unlike = 0
    for name, parameter in stage.named_in_model():
        found = run.gradients[name]
        assert found is not None and parameter.grad is not None
        unlike += int((found != parameter.grad).sum())
    times = bubbles.FORWARD, bubbles.BACKWARD, bubbles.WEIGHT
    moved = bubbles.not_as_simulated(schedule, run.spans, times)
    what = "small form: gradient elements of this rank, and the loss, that differ from one device's or the full form's"
    when = "small form: actions that begin or end at another time than the schedule says"
    source = f"{bubbles.HUANG}, §2.3, for the mean; derived for the bits"
    cases = {"one device's": run.unlike, "the full form's": unlike}
    same = {case: Claim(what, "0", 0, found, "1", source, how="compared") for case, found in cases.items()}
    return [
        fold(what, same, key=True),
        Claim(when, "0", 0, moved, source=f"{bubbles.ZERO}, appendix G", how="virtual clock"),
    ]
