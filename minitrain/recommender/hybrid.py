"""Hybrid: dense parameters on every worker, tables split over the workers; no servers.

**Idea.** The dense part of a recommender is small and each sample uses all of it: every worker holds a copy, and
chapter 02's `DataParallel` all-reduces its gradients. The tables are huge and a sample uses a row of each: a hash of
its id gives every row to one worker, and the others ask for it. So no single link carries everything.

**Source.** Naumov et al. 2019, "Deep Learning Recommendation Model for Personalization and Recommendation Systems", §3;
Mudigere et al. 2022, "Software-Hardware Co-design for Fast and Scalable Training of Deep Learning Recommendation
Models", §4, for tables split by rows.
**Sent.** Three all-to-alls per step, each with all tables: ids to the rows' owners, rows back, gradients to the owners.
**Cost.** `minitrain.costs.hybrid.worker`: 8 bytes for an id, 4d for a row or a gradient, nothing for a worker's own.
Also called hybrid parallelism; row-wise sharding (TorchRec); butterfly shuffle (DLRM, where tables have owners).
Also model-parallel embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from minitrain.collectives.all_to_all import Carrier, native
from minitrain.comm.control import differing, gather_objects
from minitrain.recommender.hashing import as_columns
from minitrain.recommender.tables import Table, by_owner, distinct, sum_by_id


class Lookup(NamedTuple):
    """A worker's record of a lookup until its gradients have been pushed.

    Attributes:
        rows: For each table the rows of this worker's distinct ids, those of rank 0 first; gradients come to them.
        served: For each table the ids that were wanted from here, each once; and where among them each wanted one lies,
            those that rank 0 wanted first.
        wishes: `wishes[source][table][to]`: how many ids each rank wanted from each.
    """

    rows: list[Float[Tensor, "ids dimension"]]
    served: list[tuple[Int64[Tensor, " served"], Int64[Tensor, " wanted"]]]
    wishes: list[list[list[int]]]


class HybridTables:
    """Tables whose rows live with the ranks of a group, each of which looks rows up and pushes gradients.

    A step is: `lookup()`, forward and backward, `push()`. Every rank of the group must call both, even with an empty
    batch.

    Args:
        tables: This rank's shard of each table by name; every rank brings tables of the same names and settings.
        group: The workers; None means everyone.
        carrier: `native`, or `pairwise` to let the ledger see every message.

    Attributes:
        tables: The shards. Each counts in `refused` the rows that it left alone because their gradient was not finite.

    Raises:
        ValueError: On every rank alike: this rank is not in the group, or names or settings of tables differ.
    """

    def __init__(self, tables: Mapping[str, Table], group: dist.ProcessGroup | None = None, carrier: Carrier = native):
        if dist.get_rank(group) < 0:
            raise ValueError(f"group: this rank ({dist.get_rank()}) is not in it; only its members keep tables")
        self.tables, self.group, self.carrier = dict(tables), group, carrier
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._dimensions = [table.dimension for table in self.tables.values()]
        self._pending: Lookup | None = None
        agree_on_tables(gather_objects({name: describe(table) for name, table in tables.items()}, group))

    def lookup(self, ids: Mapping[str, Tensor]) -> dict[str, Float[Tensor, "... _"]]:
        """The rows of these ids; with gradients turned on, `push()` sends theirs back.

        Args:
            ids: For each table 64-bit integers of any shape, even empty.

        Raises:
            ValueError: On every rank alike, before anything is sent: on some rank a table is missing or unknown, its
                ids do not fit, or gradients of the last lookup have not been pushed.
        """
        columns, problem = as_columns(ids, self.tables, self._pending is not None)
        tables = zip(columns, self.tables.values(), strict=False)  # no columns where there is a problem
        sorted_ids = [by_owner(column.to(table.device), self.ranks) for column, table in tables]
        # A control message: how many ids each rank wants from each, so that all know what will arrive; or an error.
        answers = gather_objects((problem, [each.counts for each in sorted_ids]), self.group)
        for rank, (wrong, _) in enumerate(answers):
            if wrong:
                raise ValueError(f"rank {rank}: {wrong}")
        wishes = [counts for _, counts in answers]

        # Distinct ids go to their owners.
        asked = self._exchange([each.ids for each in sorted_ids], wishes, [1] * len(self.tables), forth=True)
        found, served = [], []
        for table, column in zip(self.tables.values(), asked, strict=True):
            unique, place = distinct(column.flatten())  # a row that several workers want is looked up once
            found.append(table.lookup(unique)[place])
            served.append((unique, place))
        # Rows go back to the ranks that asked.
        rows = self._exchange(found, wishes, self._dimensions, forth=False)
        if torch.is_grad_enabled():
            self._pending = Lookup([row.requires_grad_() for row in rows], served, wishes)
        return {
            name: F.embedding(each.inverse, row) for name, each, row in zip(self.tables, sorted_ids, rows, strict=True)
        }

    @torch.no_grad()
    def push(self) -> None:
        """Send the gradients of the last lookup's rows to their owners, and update the rows here.

        A row's gradient is the sum over workers, in their order, divided by the number of workers: that of the mean
        over the whole batch, if parts are of one size. Rows that the loss did not use have gradients of zeros.

        Raises:
            RuntimeError: There was no lookup with gradients since the last push.
        """
        if self._pending is None:
            raise RuntimeError("push() needs a lookup() before it, with gradients turned on")
        pending, self._pending = self._pending, None
        gradients = [torch.zeros_like(row) if row.grad is None else row.grad for row in pending.rows]
        # A gradient for each row goes to its owner, which still knows the ids.
        came = self._exchange(gradients, pending.wishes, self._dimensions, forth=True)
        for number, (table, gradient) in enumerate(zip(self.tables.values(), came, strict=True)):
            unique, place = pending.served[number]
            counts = [wish[number][self.rank] for wish in pending.wishes]
            # In the workers' order. A worker has an id once, so that a GPU adds in this order, too.
            total = sum_by_id(gradient, place, len(unique), counts)
            table.update(unique, total / self.ranks)

    def _exchange(
        self, columns: Sequence[Tensor], wishes: list[list[list[int]]], widths: Sequence[int], forth: bool
    ) -> list[Shaped[Tensor, "_ _"]]:
        """One all-to-all for all tables: from workers to owners (`forth`), or from owners to workers.

        For each table, `columns` has the rows that leave, those for rank 0 first, and the result those that arrived,
        likewise; `widths` has the elements of a row.
        """
        mine = [[counts[to] for counts in wishes[self.rank]] for to in range(self.ranks)]  # [rank][table]
        theirs = [[counts[self.rank] for counts in wish] for wish in wishes]
        sends, receives = (
            [[rows * width for rows, width in zip(of_rank, widths, strict=True)] for of_rank in of_ranks]
            for of_ranks in ((mine, theirs) if forth else (theirs, mine))
        )
        pieces = [
            column.flatten().split(list(sizes)) for column, sizes in zip(columns, zip(*sends, strict=True), strict=True)
        ]
        outgoing = torch.cat([piece for of_rank in zip(*pieces, strict=True) for piece in of_rank])
        incoming = outgoing.new_empty(sum(map(sum, receives)))
        # Every rank's parts go to their ranks; a part has the rows of all tables, one table after the other.
        self.carrier(incoming, outgoing, [sum(part) for part in receives], [sum(part) for part in sends], self.group)
        came = incoming.split([elements for of_rank in receives for elements in of_rank])
        return [torch.cat(came[number :: len(widths)]).view(-1, width) for number, width in enumerate(widths)]


def describe(table: Table) -> str:
    """The settings that all shards of a table must share."""
    return f"dimension={table.dimension} {table.rule} seed={table.seed} scale={table.scale}"


def agree_on_tables(everyone: Sequence[Mapping[str, str]]) -> None:
    """Check that all ranks bring the same tables: names in one order, and their settings."""
    if not everyone[0]:
        raise ValueError("tables: there is none; give at least one")
    for name in dict.fromkeys(name for theirs in everyone for name in theirs):
        if listed := differing([theirs.get(name, "missing") for theirs in everyone]):
            raise ValueError(f"table {name!r} differs between ranks: {listed}; bring the same on all")
    if any(list(theirs) != list(everyone[0]) for theirs in everyone):
        raise ValueError("the order of tables differs between ranks; bring them in the same order on all")


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
