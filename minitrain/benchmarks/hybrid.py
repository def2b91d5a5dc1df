"""Hybrid tables against servers and against torch's DDP with tables on every rank: a step of the click model.

All take a batch of the same size in a step. DDP has whole tables on each rank and all-reduces a gradient for each of
their rows, used or not. With servers two ranks keep the dense part and the tables, and the others share the batch.
Fewer workers wait for each other less, which shows where ranks share cores; that a server's link carries more shows
where each rank has a machine of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.groups import new_group
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.parameter_server.full.roles import Roles
from minitrain.parameter_server.full.synchronous import Server, Worker
from minitrain.recommender.click import Batch, ClickModel, Clicks
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.hybrid import HybridTables
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table

RATE, DIMENSION, HIDDEN = 0.1, 16, 64
Step = Callable[[], None]


def measure(world: World, ids: int = 100_000, batch: int = 2048, repeats: int = 15) -> list[Comparison]:
    """Compare steps of the whole model on the same ranks.

    Args:
        world: This rank.
        ids: Different ids of each of three features.
        batch: Impressions in a step, of all workers together.
        repeats: Steps of each.
    """
    data = Clicks(ids=ids)
    batches = [data.batch(step, batch) for step in range(4)]  # drawn before: what is compared is the training
    ways = {"hybrid": _hybrid(world, data, batches, _shards(world, data)), "DDP": _ddp(world, data, batches)}
    if world.size > 2:
        ways["servers"] = _served(world, data, batches, _shards(world, data))
    medians = interleaved(world, ways, repeats)
    size = f"a click model's step, hybrid, 3 tables of {ids:,} rows, {batch} impressions, {world.size} ranks"
    against = {"DDP": f"DDP, whole tables ({world.backend})", "servers": f"servers, {world.size - 2} workers"}
    return [
        Comparison(f"{size}, {clock}", getattr(medians["hybrid"], name), getattr(medians[way], name), against[way])
        for way in ways
        if way != "hybrid"
        for clock, name in (("wall clock", "wall"), ("CPU time", "cpu"))
    ]


def _hybrid(world: World, data: Clicks, batches: list[Batch], shards: dict[str, Table]) -> Step:
    module = ClickModel(data.names, DIMENSION, data.dense, HIDDEN).to(world.device)
    model, optimizer = DataParallel(module), torch.optim.SGD(module.parameters(), RATE)
    tables = HybridTables(shards)
    turn = _turns(world, batches, world.rank, world.size)

    def step() -> None:
        part = next(turn)
        module.loss(tables.lookup(part.ids), part).backward()
        tables.push()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _served(world: World, data: Clicks, batches: list[Batch], shards: dict[str, Table]) -> Step:
    """Rank 0 keeps the dense part, rank 1 the tables."""
    work = list(range(2, world.size))
    groups = [new_group([server, *work]) for server in (0, 1)]
    workers = tuple(range(1, 1 + len(work)))
    module = ClickModel(data.names, DIMENSION, data.dense, HIDDEN).to(world.device)
    if world.rank == 0:
        server = Server(module, partial(torch.optim.SGD, lr=RATE), Roles((0,), workers, groups[0]))
        return partial(server.serve, 1)
    if world.rank == 1:
        return partial(EmbeddingServer(shards, Roles((0,), workers, groups[1])).serve, 1)
    weights = Worker(module, Roles((0,), workers, groups[0]))
    tables = EmbeddingWorker(Roles((0,), workers, groups[1]), dict.fromkeys(data.names, DIMENSION))
    turn = _turns(world, batches, world.rank - 2, len(work))

    def step() -> None:
        part = next(turn)
        weights.pull()
        module.loss(tables.lookup(part.ids), part).backward()
        tables.push()
        weights.push()
        module.zero_grad()

    return step


class _Whole(nn.Module):
    """The click model with whole tables, as on one device."""

    def __init__(self, data: Clicks):
        super().__init__()
        self.data, self.model = data, ClickModel(data.names, DIMENSION, data.dense, HIDDEN)
        self.tables = nn.ModuleDict({name: nn.Embedding(len(data.frequencies), DIMENSION) for name in data.names})

    def forward(self, part: Batch) -> Tensor:
        rows = {name: self.tables[name](self.data.numbers(column)) for name, column in part.ids.items()}
        return self.model.loss(rows, part)


def _ddp(world: World, data: Clicks, batches: list[Batch]) -> Step:
    module = DistributedDataParallel(_Whole(data).to(world.device))
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    turn = _turns(world, batches, world.rank, world.size)

    def step() -> None:
        module(next(turn)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _shards(world: World, data: Clicks) -> dict[str, Table]:
    return {name: Table(DIMENSION, SGD(RATE), device=world.device) for name in data.names}


def _turns(world: World, batches: list[Batch], worker: int, workers: int) -> Iterator[Batch]:
    return cycle([batch.part(worker, workers).to(world.device) for batch in batches])
