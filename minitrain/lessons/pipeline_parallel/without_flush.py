"""The lesson of `minitrain.pipeline_parallel.without_flush`: what its demo claims, and how that is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.pipeline_parallel import bubbles
from minitrain.lessons.pipeline_parallel.small import Observed
from minitrain.pipeline_parallel import one_f_one_b, without_flush

SAMPLES = 2


def demo(world: World, microbatches: int = 8, steps: int = 3, width: int = 5) -> list[Claim]:
    """Runs small linear stages with and without a flush; the table shows the bubble, and how much faster it is.

    Args:
        microbatches: m, of a step of 1F1B; no fewer than ranks.
        steps: N/m, of the whole training.
        width: Of the stages, which are linear.
    """
    ranks, total = world.size, steps * microbatches
    runs = {count: continuous(world, count, width) for count in (microbatches, total)}
    spans, sent = runs[total]
    flushed = with_flush(world, microbatches, steps, width)
    cases = {}
    for count, (of_run, _) in runs.items():
        predicted = float(costs.bubble_over_total(ranks, count))
        measured = bubbles.measured_over_total(of_run)
        cases[f"N = {count}"] = Claim(
            "", "(n−1)/(N+n−1)", predicted, measured, "1", f"{bubbles.HUANG}, §2.3, for one step", "virtual clock"
        )
    mine = [span for span in spans if span.rank == world.rank]
    activations = 4 * SAMPLES * width
    return [
        Claim(
            "virtual seconds that this rank waits in the steady state, from its first backward to its last forward",
            "0",
            0,
            waits(mine),
            "virtual s",
            "Narayanan et al. 2019, §3.2",
            "virtual clock",
            key=True,
        ),
        fold("bubble over the total time of N micro-batches, which goes to 0 as N grows", cases, key=True),
        Claim(
            "time of 1F1B with a flush per m micro-batches, over that without a flush",
            "(N/m)(m+n−1)/(N+n−1)",
            float(costs.without_flush_speedup(ranks, microbatches, total)),
            makespan(flushed) / makespan(spans),
            "1",
            "derived",
            "virtual clock",
            tolerance=1e-12,  # the quotient of two exact numbers, and its rounding
            key=True,
        ),
        Claim(
            "bytes sent by this rank r, activations of A bytes",
            "N(2 − [r = 0] − [r = n−1]) · A",
            costs.sent([activations] * (ranks - 1), ranks, total, world.rank).bytes,
            sent,
            "B",
            "Narayanan et al. 2021, §3.2",
            key=True,
        ),
    ]


def stage_of(world: World, width: int, clock: VirtualClock) -> Observed:
    """This rank's stage, whose forward and backward take virtual time."""
    return Observed(nn.Linear(width, width, device=world.device), world.rank, clock)


def continuous(world: World, total: int, width: int) -> tuple[list[Span], int]:
    """N micro-batches without a flush: the actions of all ranks, and the bytes that this rank sent."""
    clock, ledger = VirtualClock(), Ledger()
    stage = stage_of(world, width, clock)
    template = torch.zeros(SAMPLES, width, device=world.device)
    held: deque[tuple[Tensor, Tensor]] = deque()

    def forward(i: int, x: Tensor | None) -> Tensor:
        x = (template.clone() if x is None else x).requires_grad_()
        held.append((x, stage(x)))
        return held[-1][1].detach()

    def backward(i: int, grad_y: Tensor | None) -> Tensor | None:
        x, y = held.popleft()
        y.backward(torch.ones_like(y) if grad_y is None else grad_y)
        return None if world.rank == 0 else x.grad

    with clock, ledger:
        without_flush.stream(total, forward, backward, template)
    return _of_all(clock), ledger.sent


def with_flush(world: World, microbatches: int, steps: int, width: int) -> list[Span]:
    """The same micro-batches in steps of 1F1B: the actions of all ranks."""
    clock = VirtualClock()
    stage = stage_of(world, width, clock)
    template = torch.zeros(SAMPLES, width, device=world.device)
    with clock:
        for _ in range(steps):
            inputs = [template.clone() for _ in range(microbatches)]
            one_f_one_b.step(stage, inputs, inputs, nn.functional.mse_loss, template)
    return _of_all(clock)


def _of_all(clock: VirtualClock) -> list[Span]:
    every = gather_objects(bubbles.actions_of(clock.timeline.spans))
    return [span for theirs in every for span in theirs]


def makespan(spans: Sequence[Span]) -> float:
    """Virtual seconds from the first start to the last end of any rank."""
    return max(span.end for span in spans) - min(span.start for span in spans)


def waits(spans: Sequence[Span]) -> float:
    """Virtual seconds between the actions of one rank, from its first backward to its last forward."""
    kinds = [span.kind for span in spans]
    steady = spans[kinds.index("backward") : len(kinds) - kinds[::-1].index("forward")]
    return sum(after.start - before.end for before, after in zip(steady, steady[1:], strict=False))
