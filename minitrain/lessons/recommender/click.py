"""Shared by the lessons of tables: clicks, training with servers, what servers send, and comparing tables."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import embedding as costs
from minitrain.parameter_server.full.roles import Roles
from minitrain.recommender.click import Batch, ClickModel, Clicks
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.row_rules import RowRule
from minitrain.recommender.tables import Table

MASK = 2**64 - 1
Contents = tuple[Tensor, Tensor]  # ids, ascending, and for each its row and states in a line


class Setting(NamedTuple):
    """The common part of the demos' trainings."""

    data: Clicks
    dimension: int  # numbers in a row
    batch: int  # impressions of each worker in a step

    def tables(self, rule: RowRule, device: torch.device) -> dict[str, Table]:
        """A shard of each table without a row yet."""
        names = enumerate(self.data.names)
        return {name: Table(self.dimension, rule, seed=number, device=device) for number, name in names}

    def model(self, world: World) -> ClickModel:
        """The dense part, the same on all ranks."""
        return ClickModel(self.data.names, self.dimension, self.data.dense).to(world.device)

    def part(self, world: World, step: int, worker: int, workers: int) -> Batch:
        """A worker's part of a step's batch."""
        return self.data.batch(step, self.batch * workers).part(worker, workers).to(world.device)


def served(world: World, roles: Roles, setting: Setting, rule: RowRule, steps: int) -> tuple[dict[str, Table], Ledger]:
    """Train tables on servers, the dense part unchanged; this server's shards, none on a worker, and what was sent."""
    ledger = Ledger()
    if roles.serves:
        tables = setting.tables(rule, world.device)
        server = EmbeddingServer(tables, roles)
        with ledger:
            server.serve(steps)
        return tables, ledger
    worker = EmbeddingWorker(roles, dict.fromkeys(setting.data.names, setting.dimension))
    model = setting.model(world)
    for step in range(steps):
        batch = setting.part(world, step, roles.workers.index(world.rank), len(roles.workers))
        with ledger:
            rows = worker.lookup(batch.ids)
        model.loss(rows, batch).backward()
        with ledger:
            worker.push()
    return {}, ledger


def wishes(setting: Setting, step: int, workers: int, owners: int) -> list[list[list[int]]]:
    """`[r][t][s]`: distinct ids of table t that worker r wants from owner s in a step, counted one by one."""
    whole, found = setting.data.batch(step, setting.batch * workers), []
    for worker in range(workers):
        distinct = [set(column.tolist()) for column in whole.part(worker, workers).ids.values()]
        owned = [[python_owner(key, owners) for key in keys] for keys in distinct]
        found.append([[homes.count(rank) for rank in range(owners)] for homes in owned])
    return found


def python_owner(key: int, servers: int) -> int:
    """`hashing.owner` in Python's integers, which do not wrap around by themselves."""
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    z ^= z >> 31
    return (z - 2**64 if z >> 63 else z) % servers  # as a number with a sign


def step_costs(setting: Setting, step: int, servers: int, workers: int) -> list[costs.SparseStep]:
    """What each server, and then each worker, sends and receives in a step, by the distinct ids."""
    asked = wishes(setting, step, workers, servers)
    counts = [[[of_table[server] for of_table in wish] for wish in asked] for server in range(servers)]
    counts += [[[of_table[server] for of_table in wish] for server in range(servers)] for wish in asked]
    return [costs.step(of_rank, [setting.dimension] * len(setting.data.names)) for of_rank in counts]


def contents(shard: Table) -> Contents:
    """The rows and states of a shard, on the CPU."""
    ids, rows = shard.contents()
    return ids.cpu(), torch.cat([rows, *shard.states().values()], 1).cpu()


def gathered(tables: dict[str, Table]) -> dict[str, Contents]:
    """All ranks' shards of each table, together, on every rank; they travel as control messages."""
    everyone = [theirs for theirs in gather_objects({n: contents(t) for n, t in tables.items()}) if theirs]
    found = {}
    for name in everyone[0]:
        ids, order = torch.cat([theirs[name][0] for theirs in everyone]).sort()
        found[name] = ids, torch.cat([theirs[name][1] for theirs in everyone])[order]
    return found


def different(ours: Contents, theirs: Contents) -> int:
    """Elements that differ between two tables; a row that only one of them has counts as a whole."""
    here, there = torch.isin(ours[0], theirs[0]), torch.isin(theirs[0], ours[0])
    alone = int((~here).sum() + (~there).sum())
    return int((ours[1][here] != theirs[1][there]).sum()) + alone * ours[1].shape[1]
