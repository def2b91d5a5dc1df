"""What the demo of `serving` claims: bytes of versions, equal rows in another process, damaged files, and eviction."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.costs import serving as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recommender.click import RATE, Setting, train
from minitrain.lessons.recommender.embedding import python_owner
from minitrain.recommender import hybrid
from minitrain.recommender.click import ClickModel, Clicks
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import Adagrad
from minitrain.recommender.serving import Publisher, Replica
from minitrain.recommender.tables import Table

MONOLITH = "Liu et al. 2022"
DERIVED = "derived"
PATIENCE = 60.0  # seconds for a version to come
Contents = tuple[Tensor, Tensor]


class Seen(NamedTuple):
    """What a rank has noted.

    Attributes:
        written: Bytes of the versions with changes only that this rank has written.
        trained: Of each worker, table and version that this rank has written: ids and rows.
        served: Of those that it has served.
    """

    written: int
    trained: dict[tuple[int, str, int], Contents]
    served: dict[tuple[int, str, int], Contents]


def demo(
    world: World, steps: int = 6, batch: int = 64, ids: int = 500, dimension: int = 5, age: int = 3
) -> list[Claim]:
    """Trains on all ranks but the last, which serves meanwhile; the table shows bytes, and rows that differ.

    Args:
        steps: Steps, each of which writes a version.
        batch: Impressions of each worker in a step.
        ids: Different ids of each of three features.
        dimension: Numbers in a row.
        age: Updates without which a row is dropped.
    """
    setting = Setting(Clicks(ids=ids), dimension, batch)
    workers = max(world.size - 1, 1)
    with tempfile.TemporaryDirectory() as mine:
        folder = Path(gather_objects(mine)[0])
        seen = train_and_serve(world, setting, steps, workers, folder)
    claims = [written(world, setting, steps, workers, seen), *served(seen, steps), damaged(world, setting)]
    return [*claims, *evicted(world, setting, steps, age)]


def train_and_serve(world: World, setting: Setting, steps: int, workers: int, folder: Path) -> Seen:
    """The workers train and write; the last rank reads what there is, again and again. One rank does both in turn."""
    group = new_group(list(range(workers)))
    names = setting.data.names
    replicas = {(worker, name): Replica(folder / f"{worker}-{name}") for worker in range(workers) for name in names}
    publishers: dict[str, Publisher] = {}
    seen = Seen(0, {}, {})
    written = 0

    def read() -> None:
        for (worker, name), replica in replicas.items():
            before = replica.version
            if replica.refresh() != before:
                seen.served[worker, name, replica.version] = replica.contents()

    def watch(step: int, tables: hybrid.HybridTables, module: ClickModel) -> None:
        nonlocal written
        for name, table in tables.tables.items():
            publisher = publishers.setdefault(name, Publisher(table, folder / f"{world.rank}-{name}"))
            path = publisher.publish(step)
            written += path.stat().st_size if step > 1 else 0  # the first has all rows
            ids, rows = table.contents()
            seen.trained[world.rank, name, step] = ids.cpu(), rows.cpu()
        if world.size == 1:
            read()

    if world.rank < workers:
        with world.timed(f"{steps} steps, each with a version of {len(names)} tables"):
            train(world, setting, steps, group, watch=watch)
    else:
        until = time.monotonic() + PATIENCE
        while any(replica.version < steps for replica in replicas.values()):
            read()
            if time.monotonic() > until:
                raise TimeoutError(f"no version {steps} within {PATIENCE:.0f} s; the workers must have stopped")
            time.sleep(0.001)
    gather_objects(None)  # nobody removes the folder before all have read
    return seen._replace(written=written)


def written(world: World, setting: Setting, steps: int, workers: int, seen: Seen) -> Claim:
    """The claim on the bytes of versions: the distinct ids of each batch that this rank owns, counted one by one."""
    predicted = 0
    for step in range(1, steps) if world.rank < workers else ():
        for column in setting.data.batch(step, setting.batch * workers).ids.values():
            mine = {key for key in column.tolist() if python_owner(key, workers) == world.rank}
            predicted += costs.version_bytes(len(mine), setting.dimension)
    what = f"bytes of the versions 2 to {steps} that this rank has written"
    formula = "Σ 104 + (8 + dw) · distinct ids"
    return Claim(what, formula, predicted, seen.written, "B", f"{MONOLITH}, §2.2.2", key=True)


def served(seen: Seen, steps: int) -> list[Claim]:
    """Claims that what was served was the trainer's, at every version that was, and that the last one was."""
    everyone = gather_objects((seen.trained, seen.served))
    trained = {key: rows for theirs, _ in everyone for key, rows in theirs.items()}
    found = {key: rows for _, theirs in everyone for key, rows in theirs.items()}
    unlike = sum(different(rows, trained[key]) for key, rows in found.items())
    tables = {(worker, name) for worker, name, _ in trained}
    behind = sum(steps - max(version for *table, version in found if tuple(table) == which) for which in tables)
    what = "ids and elements served that differ from the trainer's at that version, all versions that were seen"
    return [
        Claim(what, "0", 0, unlike, "1", f"{MONOLITH}, §2.2.2", "compared", key=True),
        Claim("versions that the tables served at the end are behind", "0", 0, behind, "1", DERIVED),
    ]


def different(found: Contents, right: Contents) -> int:
    """Ids and elements that are not the same."""
    if len(found[0]) != len(right[0]):
        return len(found[0]) + len(right[0])
    return sum(int((one != other).sum()) for one, other in zip(found, right, strict=True))


def damaged(world: World, setting: Setting) -> Claim:
    """The claim that no damaged file is taken: cut short at five places, or with a flipped bit at each of five."""
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        table = Table(setting.dimension, Adagrad(lr=RATE))
        publisher = Publisher(table, folder)
        keys = torch.arange(50) + 100 * world.rank
        table.update(keys, torch.ones(50, setting.dimension))
        publisher.publish(1)
        table.update(keys[:20], torch.ones(20, setting.dimension))
        path = publisher.publish(2)
        whole = path.read_bytes()
        places = [0, 20, len(whole) // 3, len(whole) // 2, len(whole) - 1]
        torn = [whole[:place] for place in places]
        flipped = [whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :] for place in places]
        for content in (*torn, *flipped):
            path.write_bytes(content)
            replica = Replica(folder)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that it is damaged
                    taken += replica.refresh() != 1 or replica.damaged != path
            except RuntimeError:  # it was read as if it were whole
                taken += 1
    what = "damaged versions that were served, of 10 torn and flipped ones, in place of the version before"
    return Claim(what, "0", 0, taken, "1", DERIVED, "compared", key=True)


def evicted(world: World, setting: Setting, steps: int, age: int) -> list[Claim]:
    """Claims on the rows that are left after an eviction, here and where they are served, and on those that return."""
    table = Table(setting.dimension, Adagrad(lr=RATE), seed=3, device=world.device)
    name, batches = setting.data.names[0], []
    with tempfile.TemporaryDirectory() as folder:
        publisher, replica = Publisher(table, folder), Replica(folder)
        for step in range(steps):
            keys = setting.part(world, step, world.rank, world.size).ids[name].unique()
            table.update(keys, torch.ones(len(keys), setting.dimension, device=keys.device))
            batches.append(set(keys.tolist()))
            publisher.publish(step + 1)
        publisher.evict(age)
        publisher.publish(steps + 1)
        replica.refresh()
    kept = set().union(*batches[-age:])
    gone = torch.tensor(sorted(set().union(*batches) - kept), dtype=torch.int64)
    first = start(gone, 3, setting.dimension, table.scale)
    unlike = int((replica.lookup(gone) != first).sum() + (table.lookup(gone.to(table.device)).cpu() != first).sum())
    rows = {"trained": len(table) - len(gone), "served": len(replica)}  # the lookup has just made those again
    cases = {
        where: Claim("", "distinct ids of these updates", len(kept), count, "rows", f"{MONOLITH}, §2.1")
        for where, count in rows.items()
    }
    return [
        fold(f"rows left without those that the last {age} updates had not, trained and served", cases, key=True),
        Claim("elements of evicted rows that come back without their first values", "0", 0, unlike, "1", DERIVED),
    ]
