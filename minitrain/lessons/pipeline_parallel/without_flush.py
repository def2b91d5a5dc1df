"""The lesson of `minitrain.pipeline_parallel.without_flush`: what its demo claims, and how that is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.timeline import Span
from minitrain.costs import pipeline as costs
from minitrain.lessons.pipeline_parallel.small import Observed
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import without_flush

SAMPLES, WIDTH = 2, 5


def demo(world: World) -> list[Claim]:
    """Runs small linear stages without a flush; the table shows that no rank waits but at the beginning and the end."""
    rows, n = Rows("Narayanan et al. 2021, §3.2"), world.size
    runs = {count: continuous(world, count) for count in (8, 24)}
    mine = [span for span in runs[24] if span.rank == world.rank and span.lane == "compute"]
    what = "virtual seconds that this rank waits in the steady state, from its first backward to its last forward"
    rows.time(what, "0", 0, waits(mine), "Narayanan et al. 2019, §3.2")
    clock = {"how": "virtual clock"}
    for count, of_run in runs.items():
        busy = sum(span.end - span.start for span in of_run if span.lane == "compute") / n
        what = "bubble over the total time of N micro-batches, which goes to 0 as N grows"
        source = "Huang et al. 2019, §2.3"
        theory, idle = float(costs.bubble_over_total(n, count)), (end(of_run) - busy) / end(of_run)
        rows.add(what, "(p−1)/(N+p−1)", theory, idle, "1", f"{source}, for one step", case=f"N = {count}", **clock)
    return rows.claims()


def continuous(world: World, total: int) -> list[Span]:
    """N micro-batches without a flush: the spans of all ranks."""
    stage = Observed(nn.Linear(WIDTH, WIDTH, device=world.device), world.rank)
    template = torch.zeros(SAMPLES, WIDTH, device=world.device)
    held: deque[tuple[Tensor, Tensor]] = deque()

    def forward(i: int, x: Tensor | None) -> Tensor:
        x = (template.clone() if x is None else x).requires_grad_()
        held.append((x, stage(x)))
        return held[-1][1].detach()

    def backward(i: int, grad_y: Tensor | None) -> Tensor | None:
        x, y = held.popleft()
        y.backward(torch.ones_like(y) if grad_y is None else grad_y)
        return None if world.rank == 0 else x.grad

    with stage.clock:
        without_flush.stream(total, forward, backward, template)
    return stage.clock.timeline.gather().spans


def end(spans: Sequence[Span]) -> float:
    """Virtual seconds until the last rank is done; the clocks of all start at 0."""
    return max(span.end for span in spans)


def waits(spans: Sequence[Span]) -> float:
    """Virtual seconds between the actions of one rank, from its first backward to its last forward."""
    kinds = [span.kind for span in spans]
    steady = spans[kinds.index("backward") : len(kinds) - kinds[::-1].index("forward")]
    return sum(after.start - before.end for before, after in zip(steady, steady[1:], strict=False))
