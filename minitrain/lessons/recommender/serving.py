"""The lesson of `minitrain.recommender.serving`: bytes of versions, equal rows in another process."""

from __future__ import annotations

import torch

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.costs import serving as costs
from minitrain.lessons.recommender.click import Contents, different
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.shared_folder import shared_folder
from minitrain.recommender.click import Clicks
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.serving import Publisher, Replica
from minitrain.recommender.tables import Table

DIMENSION = 5  # numbers in a row


def demo(world: World) -> list[Claim]:
    """Updates tables on all ranks but the last, which serves them; the table shows bytes, and rows that differ."""
    steps, batch = 6, 64  # each step writes a version
    rows, workers = Rows("Liu et al. 2022, §2.2.2"), max(world.size - 1, 1)
    table, sizes = Table(DIMENSION, Adagrad(lr=0.2), seed=3, device=world.device), list[int]()
    keys = [Clicks(ids=500).batch(step, batch * (world.rank + 1)).ids["id0"].unique() for step in range(steps)]
    keys = keys if world.rank < workers else []
    with shared_folder(world) as folder:
        publisher = Publisher(table, folder / f"{world.rank}")
        for step, changed in enumerate(keys):
            table.update(changed.to(table.device), torch.ones(len(changed), DIMENSION, device=table.device))
            sizes.append(publisher.publish(step).stat().st_size)
        trained = gather_objects(contents(table))  # all have written
        replicas = [Replica(folder / f"{worker}") for worker in range(workers if world.rank == world.size - 1 else 0)]
        newest = [replica.refresh() for replica in replicas]
    what = f"bytes of the versions 2 to {steps} that this rank has written"
    predicted = sum(costs.version_bytes(len(changed), DIMENSION) for changed in keys[1:])  # the first has all rows
    rows.add(what, "Σ (104 + (8 + dw) · distinct ids)", predicted, sum(sizes[1:]))
    unlike = sum(different(replica.contents(), right) for replica, right in zip(replicas, trained, strict=False))
    what = "ids and elements that differ where they are served, and versions that are missing"
    rows.add(what, "0", 0, sum(gather_objects(unlike + sum(steps - 1 - each for each in newest))), "1", how="compared")
    return rows.claims()


def contents(table: Table) -> Contents:
    ids, rows = table.contents()
    return ids.cpu(), rows.cpu()
