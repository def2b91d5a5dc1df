"""The lesson of `minitrain.recommender.hybrid`: what is sent, that servers give the same, and how well it ranks.

Where all bits are equal. With the dense part fixed, a row's gradient from one worker is computed by the same operations
from the same numbers, whichever rank sent them, and owner and server add up the workers' in the same order and divide
by their number. So tables are equal after any number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.costs import hybrid as costs
from minitrain.data_parallel import DataParallel
from minitrain.lessons.pictures import recommender as pictures
from minitrain.lessons.recommender import click
from minitrain.lessons.recommender.click import Setting
from minitrain.lessons.rows import Claim, Rows
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender import hybrid
from minitrain.recommender.click import Clicks, auc
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.tables import Table

RATE = 0.2
STEPS, LONGER = 4, 64  # that are compared, and of the training whose AUC is shown


def demo(world: World) -> list[Claim]:
    """Trains a click model with no servers; the table shows bytes, that servers give the same, and the AUC reached."""
    servers, batch = 1, 64  # ranks with tables, where hybrid is compared with servers, and impressions of each worker
    rows, setting, n = Rows(), Setting(Clicks(ids=1000), 5, batch), world.size
    same = f"elements of rows and states that differ from a parameter server's, {STEPS} steps"
    busy = f"bytes to and from the busiest rank for tables, {STEPS} steps, hybrid"
    formula = "max over ranks of asked and served"
    workers = n - servers
    if workers < 1:
        rows.needs(servers + 1, same, "0")
        rows.needs(servers + 1, busy, formula)
    else:
        group, ledger = new_group(list(range(workers))), Ledger()
        kept, _ = click.served(world, split_roles(servers), setting, Adagrad(RATE), STEPS)
        mine: dict[str, Table] = {}
        if world.rank < workers:
            mine, ledger = train(world, setting, STEPS, group, pairwise, fixed=True)
        ours, theirs = click.gathered(mine), click.gathered(kept)
        unlike = sum(click.different(ours[name], theirs[name]) for name in theirs)
        rows.add(same, "0", 0, unlike, "1", how="compared")
        sizes = [[each.sent.bytes + each.received.bytes for each in of] for of in step_costs(setting, STEPS, workers)]
        found = max(gather_objects(ledger.sent + ledger.received))
        rows.add(busy, formula, max(sum(of_one) for of_one in zip(*sizes, strict=True)), found)

    # Labels of the test are the probabilities themselves, so that the bound is free of luck.
    test, curve = setting.data.batch(-1, 4000), list[tuple[int, float]]()
    part = test.part(world.rank, n).to(world.device)

    def watch(step: int, tables: hybrid.HybridTables, module: torch.nn.Module) -> None:
        if step % 10 == 0 or step == LONGER:
            with torch.no_grad():
                scores = module(tables.lookup(part.ids), part.dense)
            curve.append((step, auc(torch.cat(gather_objects(scores.cpu())), test.truth)))

    with world.timed(f"a training of {LONGER} steps", LONGER * batch * n, "impressions"):
        train(world, setting, LONGER, watch=watch)
    what = f"AUC reached in {LONGER} steps, expected over labels, beside the best without ids"
    floor = math.floor(auc(setting.data.without_ids(test), test.truth) * 1e4) / 1e4
    source = "Clémençon et al. 2008, §2"
    rows.add(what, "that of w·x", floor, curve[-1][1], "1", source, how="compared", relation=">=")
    world.figure(lambda: pictures.ranking(setting.data, setting.dimension, batch, curve))
    return rows.claims()


def step_costs(setting: Setting, steps: int, workers: int) -> list[list[costs.HybridStep]]:
    """What each worker sends and receives, for each step."""
    dimensions = [setting.dimension] * len(setting.data.names)
    asked = [click.wishes(setting, step, workers, workers) for step in range(steps)]
    return [[costs.worker(wish, dimensions, rank) for rank in range(workers)] for wish in asked]


def train(
    world: World,
    setting: Setting,
    steps: int,
    group: dist.ProcessGroup | None = None,
    carrier: hybrid.Carrier = hybrid.native,
    fixed: bool = False,
    watch: Callable[..., None] | None = None,
) -> tuple[dict[str, Table], Ledger]:
    """Train on the workers of a group, the dense part by `DataParallel`; this rank's shards, and what tables sent."""
    module, ledger = setting.model(world), Ledger()
    counting = nullcontext() if watch else ledger  # each operation takes longer where a ledger looks on
    model = DataParallel(module, group)
    tables = hybrid.HybridTables(setting.tables(Adagrad(RATE), world.device), group, carrier)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0 if fixed else RATE)
    for step in range(steps):
        batch = setting.part(world, step, tables.rank, tables.ranks)
        with counting:
            rows = tables.lookup(batch.ids)
        module.loss(rows, batch).backward()
        with counting:
            tables.push()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()
        if watch:
            watch(step + 1, tables, module)
    return tables.tables, ledger
