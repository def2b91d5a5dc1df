"""Sparse embedding tables on servers: a batch fetches the rows that it uses, and sends back only their gradients.

**Idea.** A recommender's tables are larger than any machine, and a batch uses a tiny part of them. So a worker asks for
the distinct ids of its batch, computes with their rows, and sends a gradient for each. The number of bytes depends on
how many different ids a batch has, not on how many rows exist.

**Source.** Li et al. 2014, "Scaling distributed machine learning with the parameter server", §2.2 and §4.2 (keys that
both sides know already); Naumov et al. 2019, "Deep learning recommendation model", §2.
**Sent.** Per step and pair of worker and server, three messages for all tables: ids, rows, gradients without ids.
**Cost.** Bytes: `minitrain.costs.embedding.step`; `expected_distinct` says how many distinct ids a batch has.
Also called sparse pull and push; `sparse_embedding` (PaddlePaddle); embedding parameter server (Persia, Monolith);
dynamic or collisionless embedding table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float32
from torch import Tensor

from minitrain.comm.control import gather_objects
from minitrain.comm.messages import receive, send
from minitrain.parameter_server.full.roles import Roles
from minitrain.recommender.hashing import as_columns
from minitrain.recommender.tables import SortedIds, Table, by_owner, distinct, sum_by_id


class Request(NamedTuple):
    """A worker's message before it sends ids."""

    problem: str  # the error in its ids; empty if there is none
    learns: bool  # whether gradients will follow
    counts: list[list[int]]  # `counts[table][server]`: how many ids it sends


class EmbeddingServer:
    """One server's shard of each table.

    Args:
        tables: Shards by name; all servers bring tables of the same names and settings.
        roles: The servers and the workers.

    Attributes:
        number: This server's number among the servers.
        tables: The shards. Each counts in `refused` the rows that it left alone because their gradient was not finite.

    Raises:
        ValueError: On every rank alike: names or settings of tables differ, or a rank has the wrong role.
    """

    def __init__(self, tables: Mapping[str, Table], roles: Roles):
        self.tables, self.roles = dict(tables), roles
        _meet(roles, "server", {name: _settings(table) for name, table in tables.items()})
        self.number = roles.servers.index(dist.get_rank(roles.group))

    def serve(self, steps: int) -> None:
        """Answer `steps` lookups of every worker, and apply the gradients that follow them.

        If a worker's ids are invalid, every rank gets the same ValueError, and no row has changed in this step.
        """
        for _ in range(steps):
            requests = _announce(self.roles, None)
            asked = self._answer(requests)
            self._learn(requests, asked)

    def save(self, folder: str | Path) -> None:
        """Write this server's shards into `folder`, one folder for each table; `Table.load` reads them again."""
        for name, table in self.tables.items():
            table.save(Path(folder) / name, self.number, len(self.roles.servers))

    def _counts(self, request: Request) -> list[int]:
        """How many ids of each table a worker wants from here."""
        return [counts[self.number] for counts in request.counts]

    def _answer(self, requests: Mapping[int, Request]) -> list[list[Tensor]]:
        """Send every worker its rows; returns the ids of each worker, by table."""
        group, tables = self.roles.group, list(self.tables.values())
        arriving = []
        for worker, request in requests.items():
            buffer = torch.empty(sum(self._counts(request)), dtype=torch.int64, device=tables[0].device)
            # A worker's distinct ids. All receives are posted before one is waited for: workers need not queue.
            arriving.append(receive(buffer, worker, group))
        asked, leaving = [], []
        for handle, (worker, request) in zip(arriving, requests.items(), strict=True):
            ids = handle.wait()
            assert ids is not None
            asked.append(list(ids.split(self._counts(request))))
            rows = [table.lookup(wanted).flatten() for table, wanted in zip(tables, asked[-1], strict=True)]
            # The rows of its ids go back, as they are before any gradient of this step.
            leaving.append(send(torch.cat(rows), worker, group))
        for handle in leaving:
            handle.wait()
        return asked

    def _learn(self, requests: Mapping[int, Request], asked: list[list[Tensor]]) -> None:
        """Receive the gradients of all workers that learn, and update the rows with their mean over workers.

        A row whose sum is not finite is left alone and counted: a NaN spreads no further than the rows that it reached.
        (In `synchronous` a NaN refuses a worker's whole push; here no server sees more of a push than its own rows.)
        """
        tables = list(self.tables.values())
        learners = [place for place, request in enumerate(requests.values()) if request.learns]
        arriving = []
        for place in learners:
            elements = sum(len(ids) * table.dimension for ids, table in zip(asked[place], tables, strict=True))
            buffer = torch.empty(elements, device=tables[0].device)
            # A gradient for each row that this worker got, in the order of its ids.
            arriving.append(receive(buffer, list(requests)[place], self.roles.group))
        pushed = []
        for place, handle in zip(learners, arriving, strict=True):
            gradients = handle.wait()
            assert gradients is not None
            sizes = [len(ids) * table.dimension for ids, table in zip(asked[place], tables, strict=True)]
            pushed.append(gradients.split(sizes))
        for number, table in enumerate(tables if learners else ()):
            ids = [asked[place][number] for place in learners]
            unique, inverse = distinct(torch.cat(ids))
            gradients = torch.cat([parts[number] for parts in pushed]).view(-1, table.dimension)
            # In the workers' order. A worker has an id once, so that a GPU adds in this order, too.
            total = sum_by_id(gradients, inverse, len(unique), [len(each) for each in ids])
            table.update(unique, total / len(self.roles.workers))


class EmbeddingWorker:
    """Looks rows up and pushes their gradients.

    A step is: `lookup()`, forward and backward, `push()`. Every worker calls both in every step, even with an empty
    batch. A lookup with gradients turned off is not followed by a push; for the servers it still counts as a step.

    Args:
        roles: The servers and the workers.
        dimensions: Elements of a row of each table, by name. Rows are received where the ids are.

    Raises:
        ValueError: As for `EmbeddingServer`.
    """

    def __init__(self, roles: Roles, dimensions: Mapping[str, int]):
        self.roles, self.dimensions = roles, dict(dimensions)
        self._asked: list[SortedIds] = []
        self._rows: list[Tensor] | None = None
        _meet(roles, "worker", {name: str(dimension) for name, dimension in dimensions.items()})

    def lookup(self, ids: Mapping[str, Tensor | Sequence[int]]) -> dict[str, Float32[Tensor, "... dimension"]]:
        """The rows of these ids; with gradients turned on, `push()` sends theirs back.

        It waits for servers that are not ready yet.

        Args:
            ids: For each table 64-bit integers of any shape, even empty.

        Raises:
            ValueError: On every rank alike, before anything is sent: on some worker a table is missing or unknown, its
                ids do not fit, or gradients of the last lookup have not been pushed.
        """
        columns, problem = as_columns(ids, self.dimensions, self._rows is not None)
        asked = [by_owner(column.to(columns[0].device), len(self.roles.servers)) for column in columns]
        learns = torch.is_grad_enabled()
        _announce(self.roles, Request(problem, learns, [each.counts for each in asked]))
        self._asked = asked
        leaving = []
        for parts, server in zip(_by_server([each.ids for each in asked], asked), self.roles.servers, strict=True):
            # The distinct ids of all tables whose rows this server keeps.
            leaving.append(send(torch.cat(parts), server, self.roles.group))
        rows = self._receive_rows()
        for handle in leaving:
            handle.wait()
        if learns:
            self._rows = [each.requires_grad_() for each in rows]
        # Backward through F.embedding adds the gradients of an id's occurrences, in their order, as nn.Embedding does.
        return {
            name: F.embedding(each.inverse, row) for name, each, row in zip(self.dimensions, asked, rows, strict=True)
        }

    @torch.no_grad()
    def push(self) -> None:
        """Send the servers the gradients of the last lookup's rows: zeros for those that the loss did not use.

        Raises:
            RuntimeError: There was no lookup with gradients since the last push.
        """
        if self._rows is None:
            raise RuntimeError("push() needs a lookup() before it, with gradients turned on")
        rows, self._rows = self._rows, None
        gradients = [torch.zeros_like(row) if row.grad is None else row.grad for row in rows]
        leaving = []
        for parts, server in zip(_by_server(gradients, self._asked), self.roles.servers, strict=True):
            # A gradient for each row that came from this server; it still knows the ids.
            leaving.append(send(torch.cat([part.flatten() for part in parts]), server, self.roles.group))
        for handle in leaving:
            handle.wait()

    def _receive_rows(self) -> list[Tensor]:
        """The rows of all distinct ids, by table, in the order in which `_asked` has them."""
        dimensions = list(self.dimensions.values())
        arriving = []
        for number, server in enumerate(self.roles.servers):
            sizes = [each.counts[number] * width for each, width in zip(self._asked, dimensions, strict=True)]
            buffer = torch.empty(sum(sizes), device=self._asked[0].ids.device)
            # The rows that this server was asked for, of all tables.
            arriving.append((receive(buffer, server, self.roles.group), buffer.split(sizes)))
        for handle, _ in arriving:
            handle.wait()
        return [
            torch.cat([parts[number] for _, parts in arriving]).view(-1, width)
            for number, width in enumerate(dimensions)
        ]


def _by_server(columns: Sequence[Tensor], asked: Sequence[SortedIds]) -> list[list[Tensor]]:
    """For each server its part of each column."""
    parts = [column.split(each.counts) for column, each in zip(columns, asked, strict=True)]
    return [list(of_server) for of_server in zip(*parts, strict=True)]


def _announce(roles: Roles, request: Request | None) -> dict[int, Request]:
    """A control message of every worker to all, before anything else is sent; returns the workers' requests.

    It says how many ids come, since a receiver must make room. A worker's problem is raised on every rank alike.
    """
    everyone = gather_objects(request, roles.group)
    requests = {worker: everyone[worker] for worker in roles.workers}
    problems = [f"rank {worker}: {request.problem}" for worker, request in requests.items() if request.problem]
    if problems:
        raise ValueError("; ".join(problems))
    return requests


def _settings(table: Table) -> str:
    return f"{table.dimension}, {table.rule}, seed={table.seed}, scale={table.scale}"


def _meet(roles: Roles, role: str, tables: Mapping[str, str]) -> None:
    """Check on all ranks, by a control message, that each has its role and all have the same tables."""
    if dist.get_rank(roles.group) < 0:
        raise ValueError(f"roles: this rank ({dist.get_rank()}) is not in their group; only its members take part")
    everyone = gather_objects((role, dict(tables)), roles.group)
    for rank, (brought, _) in enumerate(everyone):
        expected = "server" if rank in roles.servers else "worker"
        if brought != expected:
            raise ValueError(f"roles: rank {rank} is a {expected} and made an Embedding{brought.title()}")
    truth = everyone[roles.servers[0]][1]
    if not truth:
        raise ValueError("tables: there is none; give at least one")
    for rank, (role, found) in enumerate(everyone):
        expected = truth if role == "server" else {name: text.split(",")[0] for name, text in truth.items()}
        if list(found.items()) != list(expected.items()):
            raise ValueError(
                f"tables: rank {rank}, a {role}, has {found}, but rank {roles.servers[0]}, a server, has {truth}; "
                "bring the same tables in the same order, with the same settings, on all ranks"
            )


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
