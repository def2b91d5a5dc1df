"""Training the click model, by servers and without: shared by the demos and benchmarks of tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist

from minitrain.comm import Ledger, World
from minitrain.data_parallel import DataParallel
from minitrain.parameter_server.full.roles import Roles
from minitrain.parameter_server.full.synchronous import Server, Worker
from minitrain.recommender import hybrid
from minitrain.recommender.click import Batch, ClickModel, Clicks
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.tables import Table

RATE = 0.2  # of tables and of the dense part


class Setting(NamedTuple):
    """The common part of the demo's trainings.

    Attributes:
        data: The clicks.
        dimension: Numbers in a row.
        batch: Impressions of each worker in a step.
    """

    data: Clicks
    dimension: int
    batch: int

    def tables(self, device: torch.device) -> dict[str, Table]:
        """A shard of each table without a row yet."""
        rule = Adagrad(lr=RATE)
        return {
            name: Table(self.dimension, rule, seed=number, device=device) for number, name in enumerate(self.data.names)
        }

    def model(self, world: World) -> ClickModel:
        """The dense part, the same on all ranks."""
        return ClickModel(self.data.names, self.dimension, self.data.dense).to(world.device)

    def part(self, world: World, step: int, worker: int, workers: int) -> Batch:
        """A worker's part of a step's batch."""
        return self.data.batch(step, self.batch * workers).part(worker, workers).to(world.device)


class Trained(NamedTuple):
    """What a training leaves on a rank.

    Attributes:
        tables: The shards that this rank keeps; none on a worker of a parameter server.
        model: The dense part; None on a server of tables.
    """

    tables: dict[str, Table]
    model: ClickModel | None


def train(
    world: World,
    setting: Setting,
    steps: int,
    group: dist.ProcessGroup | None = None,
    carrier: hybrid.Carrier = hybrid.native,
    fixed: bool = False,
    ledger: Ledger | None = None,
    watch: Callable[[int, hybrid.HybridTables, ClickModel], None] | None = None,
) -> Trained:
    """Trains the click model on the workers of `group`.

    Args:
        world: This rank.
        setting: What to train.
        steps: Their number.
        group: The workers; None means everyone.
        carrier: Of the tables' rows.
        fixed: Leave the dense part as it is.
        ledger: Counts what is sent and received for tables; each operation takes longer where one looks on.
        watch: Called after each step, with the number of steps done.
    """
    module, counting = setting.model(world), ledger or nullcontext()
    model = DataParallel(module, group)
    tables = hybrid.HybridTables(setting.tables(world.device), group, carrier)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    for step in range(steps):
        batch = setting.part(world, step, tables.rank, tables.ranks)
        with counting:
            rows = tables.lookup(batch.ids)
        module.loss(rows, batch).backward()
        with counting:
            tables.push()
        model.synchronize()
        if not fixed:
            optimizer.step()
        optimizer.zero_grad()
        if watch:
            watch(step + 1, tables, module)
    return Trained(tables.tables, module)


def train_served(
    world: World,
    setting: Setting,
    steps: int,
    dense: Roles | None,
    sparse: Roles | None,
    fixed: bool = False,
    ledger: Ledger | None = None,
) -> Trained:
    """Trains the same with servers: rank 0 keeps the dense part, the next ranks the tables.

    Args:
        world: This rank.
        setting: What to train.
        steps: Their number.
        dense: The server of the dense part, and the workers; None on a server of tables.
        sparse: The servers of tables, and the same workers; None on the server of the dense part.
        fixed: Leave the dense part as it is.
        ledger: Counts what is sent and received for tables.
    """
    module, counting = setting.model(world), ledger or nullcontext()
    if sparse is None:
        assert dense is not None
        Server(module, partial(torch.optim.SGD, lr=0.0 if fixed else RATE), dense).serve(steps)
        return Trained({}, module)
    if dense is None:
        shards = setting.tables(world.device)
        server = EmbeddingServer(shards, sparse)
        with counting:
            server.serve(steps)
        return Trained(shards, None)
    tables = EmbeddingWorker(sparse, {name: setting.dimension for name in setting.data.names})
    weights = Worker(module, dense)
    number, workers = sparse.workers.index(dist.get_rank(sparse.group)), len(sparse.workers)
    for step in range(steps):
        batch = setting.part(world, step, number, workers)
        weights.pull()
        with counting:
            rows = tables.lookup(batch.ids)
        module.loss(rows, batch).backward()
        with counting:
            tables.push()
        weights.push()
        module.zero_grad()
    return Trained({}, module)
