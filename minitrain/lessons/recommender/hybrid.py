"""The lesson of `minitrain.recommender.hybrid`: what is sent, and that servers give the same.

Where all bits are equal. With the dense part fixed, a row's gradient from one worker is computed by the same operations
from the same numbers, whichever rank sent them, and owner and server add up the workers' in the same order and divide
by their number. So tables are equal after any number of steps.
"""

from __future__ import annotations

import torch.distributed as dist

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.costs import hybrid as costs
from minitrain.lessons.recommender import click
from minitrain.lessons.recommender.click import Setting
from minitrain.lessons.rows import Claim, Rows
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender.click import Clicks
from minitrain.recommender.hybrid import HybridTables
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.tables import Table

RATE, STEPS = 0.2, 4


def demo(world: World) -> list[Claim]:
    """Trains a click model's tables with no servers; the table shows bytes, and that servers give the same."""
    rows, setting, workers = Rows(), Setting(Clicks(ids=1000), 5, batch=64), world.size - 1  # one rank would serve
    same = f"elements of rows and states that differ from a parameter server's, {STEPS} steps"
    busy = f"bytes to and from the busiest rank for tables, {STEPS} steps, hybrid"
    formula = "max over ranks of asked and served"
    if workers < 1:
        rows.needs(2, same, "0")
        rows.needs(2, busy, formula)
        return rows.claims()
    group = new_group(list(range(workers)))
    kept, _ = click.served(world, split_roles(1), setting, Adagrad(RATE), STEPS)
    mine, ledger = train(world, setting, group) if world.rank < workers else ({}, Ledger())
    ours, theirs = click.gathered(mine), click.gathered(kept)
    unlike = sum(click.different(ours[name], theirs[name]) for name in theirs)
    rows.add(same, "0", 0, unlike, "1", how="compared")
    sizes = [
        [step.sent.bytes + step.received.bytes for step in of_rank(setting, rank, workers)] for rank in range(workers)
    ]
    rows.add(busy, formula, max(map(sum, sizes)), max(gather_objects(ledger.sent + ledger.received)))
    return rows.claims()


def of_rank(setting: Setting, rank: int, workers: int) -> list[costs.HybridStep]:
    """What a worker sends and receives, for each step."""
    dimensions = [setting.dimension] * len(setting.data.names)
    return [costs.worker(click.wishes(setting, step, workers, workers), dimensions, rank) for step in range(STEPS)]


def train(world: World, setting: Setting, group: dist.ProcessGroup | None) -> tuple[dict[str, Table], Ledger]:
    """Train the tables of the workers of a group, the dense part unchanged; this rank's shards, and what was sent."""
    model, ledger = setting.model(world), Ledger()
    tables = HybridTables(setting.tables(Adagrad(RATE), world.device), group, pairwise)
    for step in range(STEPS):
        batch = setting.part(world, step, tables.rank, tables.ranks)
        with ledger:
            rows = tables.lookup(batch.ids)
        model.loss(rows, batch).backward()
        with ledger:
            tables.push()
    return tables.tables, ledger
