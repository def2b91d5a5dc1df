"""The lesson of `minitrain.recommender.serving`: bytes of versions, equal rows in another process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.costs import serving as costs
from minitrain.lessons.recommender.click import Contents, different
from minitrain.lessons.rows import Claim, Rows
from minitrain.recommender.click import Clicks
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.serving import Publisher, Replica
from minitrain.recommender.tables import Table

DIMENSION, PATIENCE = 5, 60.0  # numbers in a row; seconds for a version to come


def demo(world: World) -> list[Claim]:
    """Updates tables on all ranks but the last, which serves them; the table shows bytes, and rows that differ."""
    steps, batch = 6, 64  # each step writes a version
    rows, workers = Rows("Liu et al. 2022, §2.2.2"), max(world.size - 1, 1)
    table, written = Table(DIMENSION, Adagrad(lr=0.2), seed=3, device=world.device), 0
    keys = [Clicks(ids=500).batch(step, batch * (world.rank + 1)).ids["id0"].unique() for step in range(steps)]
    trained: dict[tuple[int, int], Contents] = {}
    served: dict[tuple[int, int], Contents] = {}
    with tempfile.TemporaryDirectory() as mine, world.timed(f"{steps} steps, each with a version"):
        folder = Path(gather_objects(mine)[0])
        publisher = Publisher(table, folder / f"{world.rank}")
        for step in range(1, 1 + steps if world.rank < workers else 1):
            update(table, keys[step - 1])
            size = publisher.publish(step).stat().st_size
            written += size if step > 1 else 0  # the first has all rows
            trained[world.rank, step] = tuple(each.cpu() for each in table.contents())  # type: ignore[unsupported-operation]
        # The last rank reads while the others write; a single rank reads at the end.
        for worker in range(workers if world.rank == world.size - 1 else 0):
            replica, until = Replica(folder / f"{worker}"), time.monotonic() + PATIENCE
            while replica.version < steps and time.monotonic() < until:
                before = replica.version
                if replica.refresh() != before:
                    served[worker, replica.version] = replica.contents()
                time.sleep(0.001)
        everyone = gather_objects((trained, served))  # nobody removes the folder before all have read
    changed = [len(each) for each in keys[1:]] if world.rank < workers else []
    predicted = sum(costs.version_bytes(count, DIMENSION) for count in changed)
    what = f"bytes of the versions 2 to {steps} that this rank has written"
    rows.add(what, "Σ (104 + (8 + dw) · distinct ids)", predicted, written)

    right = {key: contents for theirs, _ in everyone for key, contents in theirs.items()}
    found = {key: contents for _, theirs in everyone for key, contents in theirs.items()}
    unlike = sum(different(contents, right[key]) for key, contents in found.items())
    # A worker whose last version never came is counted, too.
    unlike += sum((worker, steps) not in found for worker in range(workers))
    what = "ids and elements served that differ from the trainer's at that version, all versions that were seen"
    rows.add(what, "0", 0, unlike, "1", how="compared")

    return rows.claims()


def update(table: Table, keys: torch.Tensor) -> None:
    table.update(keys.to(table.device), torch.ones(len(keys), DIMENSION, device=table.device))
