"""A table's lookup and update of many ids at once against a plain Python loop over a `dict` of rows.

Nothing is sent in the first part: each rank has a table for itself. In the second, rank 0 serves and all others look
rows up and push gradients; there the two differ in the server's table only, and the messages are the same.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table

DIMENSION, ROWS = 16, 200_000
RATE = 0.1

TARGETS = {"lookup": 8.0, "update": 5.0}
"""Speed over that of the loop, on CPUs, in CPU time: ranks that share cores slow each other down."""


class LoopTable(Table):
    """The obvious first version: a dictionary of rows, and a loop over ids. Gradient descent is its only rule."""

    def __init__(self, dimension: int, device: torch.device):
        super().__init__(dimension, SGD(RATE), device=device)
        self.rows: dict[int, Tensor] = {}

    def lookup(self, ids: Tensor) -> Tensor:
        found = []
        for key in ids.tolist():
            if key not in self.rows:
                self.rows[key] = start(torch.tensor([key], device=self.device), 0, self.dimension, self.scale)[0]
            found.append(self.rows[key])
        return torch.stack(found)

    def update(self, ids: Tensor, gradients: Tensor) -> None:
        for key, gradient in zip(ids.tolist(), gradients, strict=True):
            self.rows[key].sub_(gradient, alpha=RATE)


def measure(world: World, ids: int = 20_000, rows: int = ROWS, repeats: int = 9) -> list[Comparison]:
    """Compare lookups and updates of existing rows.

    Args:
        world: This rank.
        ids: Distinct ids in a lookup.
        rows: Rows in each table.
        repeats: Repetitions of each.
    """
    tables = {"ours": Table(DIMENSION, SGD(RATE), device=world.device), "loop": LoopTable(DIMENSION, world.device)}
    keys = _fill(tables["ours"], tables["loop"], rows)
    generator = torch.Generator().manual_seed(world.rank)
    wanted = keys[torch.randperm(rows, generator=generator)[:ids]].to(world.device)
    gradients = torch.ones(len(wanted), DIMENSION, device=world.device)
    results = []
    about = f"of {len(wanted):,} ids, {world.size} ranks, "
    for verb, way in (("lookup", _lookup), ("update", lambda table, ids: _update(table, ids, gradients))):
        medians = interleaved(world, {name: way(table, wanted) for name, table in tables.items()}, repeats)
        # A GPU works while its CPU waits, so there the wall's clock counts. CPU time is that of all ranks together.
        gpu = world.device.type == "cuda"
        ours, theirs = (each.wall if gpu else each.cpu / world.size for each in (medians["ours"], medians["loop"]))
        clock = "wall clock" if gpu else "CPU time"
        rates = f"{clock}, {len(wanted) / ours / 1e6:.1f} against {len(wanted) / theirs / 1e6:.2f} M ids/s a rank"
        target = None if gpu else TARGETS[verb]
        results.append(Comparison(f"{verb} {about}{rates}", ours, theirs, "a loop over a dict", target=target))
    if world.size > 1:
        results.append(_served(world, tables, wanted, repeats))
    return results


def _served(world: World, tables: dict[str, Table], wanted: Tensor, repeats: int) -> Comparison:
    """A lookup and a push of every worker at once, from one server."""
    roles = split_roles(1)
    ways: dict[str, Callable[[], None]] = {}
    for name, table in tables.items():
        if roles.serves:
            server = EmbeddingServer({"table": table}, roles)
            ways[name] = lambda server=server: server.serve(1)
        else:
            worker = EmbeddingWorker(roles, {"table": DIMENSION})
            ways[name] = lambda worker=worker: _work(worker, wanted)
    medians = interleaved(world, ways, repeats)
    ours, theirs = medians["ours"].wall, medians["loop"].wall
    every = len(roles.workers) * len(wanted)
    rates = f"{every / ours / 1e6:.2f} against {every / theirs / 1e6:.2f} M ids/s"
    what = f"{len(wanted):,} ids of each worker looked up and pushed, 1 server, {world.size} ranks, {rates}"
    return Comparison(what, ours, theirs, "a server that loops")


def _fill(table: Table, loop: Table, rows: int) -> Tensor:
    """Give both the same rows; returns their ids."""
    generator = torch.Generator().manual_seed(0)
    keys = torch.randint(-(2**62), 2**62, (rows,), generator=generator).unique()
    assert isinstance(loop, LoopTable) and len(keys) == rows
    found = table.lookup(keys.to(table.device))
    # Each row is a tensor of its own, as if it had been made when it was first asked for.
    loop.rows = {key: row.clone() for key, row in zip(keys.tolist(), found, strict=True)}
    return keys


def _lookup(table: Table, ids: Tensor) -> Callable[[], object]:
    return lambda: table.lookup(ids)


def _update(table: Table, ids: Tensor, gradients: Tensor) -> Callable[[], object]:
    return lambda: table.update(ids, gradients)


def _work(worker: EmbeddingWorker, ids: Tensor) -> None:
    worker.lookup({"table": ids})["table"].sum().backward()
    worker.push()
