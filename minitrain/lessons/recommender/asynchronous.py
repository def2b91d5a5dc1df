"""The lesson of `minitrain.recommender.asynchronous`: what staleness gains, and whom it hits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from minitrain.collectives.all_to_all import pairwise
from minitrain.collectives.full import ring
from minitrain.comm import VirtualClock, World
from minitrain.comm.control import control, gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, Handle, all_reduce, rank_and_size
from minitrain.comm.timeline import Span
from minitrain.costs import staleness as costs
from minitrain.costs.embedding import zipf
from minitrain.lessons.claims import Claim
from minitrain.lessons.rows import Rows
from minitrain.recommender.asynchronous import AsynchronousTable, Batch, train
from minitrain.recommender.click import Batch as ClickBatch
from minitrain.recommender.click import ClickModel, Clicks

FEATURES, IDS, SKEW, DIMENSION = 3, 1000, 1.1, 4
RATE, ROW_RATE = 0.5, 16.0  # of the dense part, and of rows, whose gradients are small: few impressions use a row
BATCH = 32  # impressions of each rank in a step
STEPS, LONGER, STALE = 12, 60, 3
BETA, SIZE = 2.0**-20, 16  # virtual seconds per byte; numbers of the dense part, for each rank
COMPUTE = 2.0**-12  # virtual seconds of a step for each rank: F + P lies between R and C + R on any number of ranks
SOURCE = "Lian et al. 2022, §3"


def demo(world: World) -> list[Claim]:
    """Trains a click model whose rows are fetched early; the table shows time gained, and updates missed."""
    rows, n, data = Rows(), world.size, Clicks(FEATURES, IDS, skew=SKEW)
    # The table's group and the dense part's, on CPUs, and what carries virtual times: in one order, for two threads.
    groups = [new_group(range(n), backend="gloo") for _ in range(2)]
    for group in groups:
        control(group)

    for case, stale in (("s = 0", 0), ("s = 1 or 2", 1), ("s = 1 or 2", 2)):
        formula, predicted = costs.hybrid_seconds(STEPS, stale, *times(n))
        found = max(gather_objects(timed(groups, stale)[0]))
        rows.time(f"time of {STEPS} steps, {case}", formula, predicted, found, SOURCE, case=f"{stale}")

    table, _, _ = clicks(groups, data, STALE, LONGER)
    numbers, missed = (torch.cat(gather_objects(torch.cat(each))) for each in zip(*table.missed, strict=True))
    for name, low, high in (("the 3 most frequent", 0, 3), ("the 900 rarest", IDS - 900, IDS)):
        mine = missed[(numbers % IDS >= low) & (numbers % IDS < high)]
        predicted = costs.missed_updates(zipf(IDS, SKEW)[low:high], BATCH, n, STALE, LONGER)
        # 20 %: more than four standard deviations of the few updates that rare ids miss.
        what = f"updates that a row missed on average, {name} of {IDS} ids"
        rows.add(what, "s (1 − (1−p)^D)", predicted, float(mine.double().mean()), "updates", SOURCE, tolerance=0.2)

    return rows.claims()


def clicks(
    groups: Sequence[Group], data: Clicks, staleness: int, steps: int
) -> tuple[AsynchronousTable, ClickModel, float]:
    """Train on all ranks, on the CPU in float64; this rank's rows, the dense part, and the loss on new impressions."""
    rank, ranks = rank_and_size()
    table = AsynchronousTable(first_rows(ranks).chunk(ranks)[rank].clone(), ROW_RATE, staleness, groups[0])
    model = ClickModel(data.names, DIMENSION, data.dense).double()
    batches = [data.batch(step, BATCH * ranks).part(rank, ranks) for step in range(steps)]

    def backward(step: int, rows: Tensor) -> None:
        loss_of(model, rows, batches[step]).backward()

    optimizer = torch.optim.SGD(model.parameters(), RATE)
    train(table, [ids_of(data, batch) for batch in batches], backward, optimizer, partial(all_reduce, group=groups[1]))
    table.missed = [(numbers + rank * len(table.rows), missed) for numbers, missed in table.missed]
    test = data.batch(-1, 4000)
    with torch.no_grad():
        everything = torch.cat(gather_objects(table.rows))
        loss = loss_of(model, everything[ids_of(data, test)], test)
    return table, model, loss.item()


def first_rows(ranks: int) -> Tensor:
    """The rows of all features, one feature after the other, filled up to what the ranks can share equally."""
    ids = math.ceil(FEATURES * IDS / ranks) * ranks
    return 0.1 * torch.randn(ids, DIMENSION, generator=torch.Generator().manual_seed(19), dtype=torch.float64)


def ids_of(data: Clicks, batch: ClickBatch) -> Tensor:
    """The number of each impression's row in a table of all features, [batch, features]."""
    return torch.stack([data.numbers(batch.ids[name]) + IDS * at for at, name in enumerate(data.names)], 1)


def loss_of(model: ClickModel, rows: Tensor, batch: ClickBatch) -> Tensor:
    """Of rows [batch, features, dimension], in float64."""
    batch = batch._replace(dense=batch.dense.double(), labels=batch.labels.double())
    return model.loss(dict(zip(model.names, rows.unbind(1), strict=True)), batch)


class TimedTable(AsynchronousTable):
    """A table whose thread has a virtual clock of its own: links of its own, as Persia's CPUs have."""

    def __init__(self, clock: VirtualClock, *settings: Any):
        super().__init__(*settings)
        self.clock, self.own = clock, VirtualClock(0.0, BETA)
        self.called, self.fetched = SimpleQueue[float](), SimpleQueue[float]()
        self.thread.submit(self.own.__enter__).result()

    def ahead(self, ids: Tensor) -> None:
        self.called.put(self.clock.now)
        super().ahead(ids)

    def push(self) -> None:
        self.called.put(self.clock.now)
        super().push()

    def take(self) -> Tensor:
        rows = super().take()
        self.clock.wait_until(self.fetched.get())
        return rows

    def fetch(self, ids: Tensor) -> Batch:
        self.own.wait_until(self.called.get())
        with self.own.timeline.span("F", lane="thread"):
            batch = super().fetch(ids)
        self.fetched.put(self.own.now)
        return batch

    def apply(self, batch: Batch) -> None:
        self.own.wait_until(self.called.get())
        with self.own.timeline.span("P", lane="thread"):
            super().apply(batch)


def timed(groups: Sequence[Group], staleness: int) -> tuple[float, list[Span]]:
    """Virtual seconds of this rank for steps in which it wants 8 rows of each rank; its spans C, R, F and P."""
    ranks = rank_and_size()[1]
    dense, ids = torch.zeros(ranks, SIZE, requires_grad=True), torch.arange(8 * ranks)

    def backward(step: int, rows: Tensor) -> None:
        (rows.sum() * dense.sum()).backward()
        clock.work(COMPUTE * ranks, "C")

    def reduce(gradient: Tensor) -> Handle:
        with clock.timeline.span("R", lane="compute"):
            handle = ring.all_reduce(gradient, group=groups[1])
            handle.wait()
        return handle

    with VirtualClock(0.0, BETA) as clock:
        table = TimedTable(clock, torch.zeros(8, DIMENSION), RATE, staleness, groups[0], by_messages)
        train(table, [ids] * STEPS, backward, torch.optim.SGD([dense], RATE), reduce)
        table.thread.submit(table.own.__exit__).result()
    spans = [*clock.timeline.spans, *table.own.timeline.spans]
    return clock.now, [span for span in spans if span.lane in ("compute", "thread")]


def by_messages(rows: Tensor, leaving: list[int], arriving: list[int], group: Group) -> Handle:
    """`all_to_all` in messages, which the virtual clock sees."""
    into = rows.new_empty(sum(arriving), *rows.shape[1:])
    pairwise(into, rows, arriving, leaving, group)
    return Handle((), into)


def times(n: int) -> tuple[float, float, float, float]:
    """Seconds of a step: to compute, to all-reduce the dense part, to fetch rows, and to push their gradients."""
    push = (n - 1) * 8 * DIMENSION * 4 * BETA
    return COMPUTE * n, 2 * (n - 1) * SIZE * 4 * BETA, (n - 1) * 8 * (1 + 8) * BETA + push, push
