"""Hybrid tables against torch's DDP with whole tables on every rank: a step of the click model.

DDP all-reduces a gradient for each row of the tables, used or not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.recommender.click import Batch, ClickModel, Clicks
from minitrain.recommender.hybrid import HybridTables
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table

RATE, DIMENSION, HIDDEN = 0.1, 16, 64
Step = Callable[[Batch], None]


def measure(world: World, ids: int = 100_000, batch: int = 2048, repeats: int = 15) -> list[Comparison]:
    """Compare steps of the whole model; `ids` are those of each feature, `batch` is that of all ranks together."""
    data = Clicks(ids=ids)
    # Drawn before: what is compared is the training.
    batches = [data.batch(step, batch).part(world.rank, world.size).to(world.device) for step in range(4)]
    ways: dict[str, Callable[[], None]] = {}
    for name, make in (("ours", hybrid), ("theirs", with_ddp)):
        step, parts = make(world, data)[1], cycle(batches)
        ways[name] = lambda step=step, parts=parts: step(next(parts))
    medians = interleaved(world, ways, repeats)
    what = f"a click model's step, hybrid, 3 tables of {ids:,} rows, {batch} impressions, {world.size} ranks"
    return by_both_clocks(what, medians["ours"], medians["theirs"], f"DDP, whole tables ({world.backend})")


def hybrid(world: World, data: Clicks) -> tuple[HybridTables, Step]:
    """Its tables, and a step."""
    module = ClickModel(data.names, DIMENSION, data.dense, HIDDEN).to(world.device)
    model, optimizer = DataParallel(module), torch.optim.SGD(module.parameters(), RATE)
    tables = HybridTables({name: Table(DIMENSION, SGD(RATE), device=world.device) for name in data.names})

    def step(part: Batch) -> None:
        module.loss(tables.lookup(part.ids), part).backward()
        tables.push()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    return tables, step


class _Whole(nn.Module):
    """The click model with whole tables, as on one device."""

    def __init__(self, data: Clicks):
        super().__init__()
        self.data, self.model = data, ClickModel(data.names, DIMENSION, data.dense, HIDDEN)
        self.tables = nn.ModuleDict({name: nn.Embedding(len(data.frequencies), DIMENSION) for name in data.names})

    def forward(self, part: Batch) -> Tensor:
        rows = {name: self.tables[name](self.data.numbers(column)) for name, column in part.ids.items()}
        return self.model.loss(rows, part)


def with_ddp(world: World, data: Clicks) -> tuple[nn.ModuleDict, Step]:
    """Its tables, and a step."""
    module = _Whole(data).to(world.device)
    model, optimizer = DistributedDataParallel(module), torch.optim.SGD(module.parameters(), RATE)

    def step(part: Batch) -> None:
        model(part).backward()
        optimizer.step()
        optimizer.zero_grad()

    return module.tables, step
