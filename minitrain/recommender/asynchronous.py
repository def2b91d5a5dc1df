"""Asynchronous tables: rows are fetched steps ahead and pushed behind, while the dense part stays synchronous.

**Idea.** Every sample uses the dense part, so a stale gradient would hurt there: it is all-reduced in each step. A row
is used by few samples, so it hardly matters if it lacks the last pushes. Therefore a thread carries the rows: those of
a batch are fetched s steps before their turn, and gradients leave while the next steps are computed.

**Source.** Lian et al. 2022, "Persia: an open, hybrid system scaling deep learning-based recommenders up to 100
trillion parameters", §3. There, servers own the tables and s is a bound; here workers own them, as in `hybrid`.
**Sent.** As in `hybrid`: ids, rows and gradients, in all-to-alls on a group of the table's own. With gloo, on CPUs: the
thread's collectives and those of the dense part run at the same time, in no order that all ranks share.
**Cost.** The rows of s + 1 batches. The row of an id that has the probability p misses s(1 − (1−p)^D) updates on
average, where D ids are drawn in a step: nearly s if the id is frequent, and nearly none if it is rare.
Also called hybrid training (Persia), embedding staleness, bounded staleness of tables, prefetched embeddings.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from minitrain.comm.messages import Group, all_reduce, all_to_all, rank_and_size


class Batch(NamedTuple):
    """The rows of a batch's distinct ids, and what is needed to push their gradients."""

    rows: Tensor  # [distinct, dimension], those of rank 0 first
    places: Tensor  # which of the rows each of the batch's ids has
    leaving: list[int]  # how many of the rows each rank keeps
    wanted: Tensor  # numbers of the rows that others have fetched from here
    arriving: list[int]  # how many of these each rank has
    updates: Tensor  # how many updates these had had


class AsynchronousTable:
    """A table with a thread of its own: `ahead` and `push` return at once, `take` waits for a batch's rows.

    Args:
        rows: This rank's, [ids / n, dimension]: those of the next ids / n ids. (`hashing` spreads the frequent ones.)
        lr: Of SGD, with the mean of the ranks' gradients.
        staleness: s, by how many steps a batch is fetched early.
        group: The table's own, on which nothing else is sent.
        carry: The all-to-all.

    Attributes:
        missed: For each push, which rows had been fetched, and how many updates each has had since.
    """

    def __init__(self, rows: Tensor, lr: float, staleness: int, group: Group = None, carry: Callable = all_to_all):
        self.rows, self.lr, self.staleness, self.group, self.carry = rows, lr, staleness, group, carry
        self.rank, self.ranks = rank_and_size(group)
        self.updates = torch.zeros(len(rows), dtype=torch.int64)
        self.missed: list[tuple[Tensor, Tensor]] = []
        # A single thread, so that all ranks fetch and push in the same order.
        self.thread, self.coming, self.going = ThreadPoolExecutor(1), deque[Future](), list[Future]()

    def ahead(self, ids: Tensor) -> None:
        self.coming.append(self.thread.submit(self.fetch, ids))

    def take(self) -> Tensor:
        """The rows of the next batch, one for each of its ids."""
        self.batch = self.coming.popleft().result()
        return F.embedding(self.batch.places, self.batch.rows.requires_grad_())

    def push(self) -> None:
        self.going.append(self.thread.submit(self.apply, self.batch))

    def fetch(self, ids: Tensor) -> Batch:
        unique, inverse = ids.unique(return_inverse=True)
        leaving, one = (unique // len(self.rows)).bincount(minlength=self.ranks).tolist(), [1] * self.ranks
        # How many ids come from each rank, the ids themselves, and their rows back.
        arriving = self.carry(torch.tensor(leaving), one, one, self.group).wait().tolist()
        wanted = self.carry(unique, leaving, arriving, self.group).wait() - self.rank * len(self.rows)
        rows = self.carry(self.rows[wanted], arriving, leaving, self.group).wait()
        return Batch(rows, inverse, leaving, wanted, arriving, self.updates[wanted])

    def apply(self, batch: Batch) -> None:
        # Gradients go to the rows' owners, who still know which these are.
        gradients = self.carry(batch.rows.grad, batch.leaving, batch.arriving, self.group).wait()
        self.missed.append((batch.wanted, self.updates[batch.wanted] - batch.updates))
        self.rows.index_add_(0, batch.wanted, gradients, alpha=-self.lr / self.ranks)
        self.updates[batch.wanted.unique()] += 1


def train(
    table: AsynchronousTable, ids: list[Tensor], backward: Callable, optimizer: Optimizer, reduce: Callable = all_reduce
) -> None:
    """A step for each of this rank's batches of ids; `backward(step, rows)` computes gradients of rows and dense part.

    The rows of a batch lack the pushes of exactly `table.staleness` steps. With 0 this is the synchronous training.
    """
    ahead = table.staleness + 1
    for batch in ids[:ahead]:
        table.ahead(batch)
    for step in range(len(ids)):
        backward(step, table.take())
        table.push()
        for batch in ids[step + ahead : step + ahead + 1]:
            table.ahead(batch)
        # The dense part waits for all ranks, and meanwhile the table's thread carries rows.
        for parameter in optimizer.param_groups[0]["params"]:
            reduce(parameter.grad).wait().div_(table.ranks)
        optimizer.step()
        optimizer.zero_grad()
    for push in table.going:
        push.result()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
