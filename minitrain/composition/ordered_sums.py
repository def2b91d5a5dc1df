"""Data parallelism with the bits of one device: gradients, norm and losses are added in the order of micro-batches.

**Idea.** `minitrain.resilience.ordered_sum` for the trainer. The whole batch is U = dp · m micro-batches, and rank r
computes the r-th m of them. Each rank keeps its micro-batches' gradients apart. Then the sum so far travels from rank
to rank, and each adds its own, in order. The last rank, which has the whole sum, also computes its norm. So every
addition is one that a single device with U micro-batches does, in the same order.

**Source.** Derived.
**Sent.** The sum so far to the next rank, and the whole sum back: 2(n−1)S in all, as a ring all-reduce. With ZeRO 1
only the shards that the ranks before need travel back. The all-reduce of norm and loss has a loss per micro-batch.
**Cost.** Room for m gradients on every rank but the first, which adds them up as one device does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Float64
from torch import Tensor, nn

from minitrain.comm.clip_grad_norm import sum_of_squares
from minitrain.comm.comm import Comm
from minitrain.comm.messages import receive, send
from minitrain.zero.full.stage1 import Zero1


class OrderedSums(Zero1):
    """Stages 0 and 1 of ZeRO, whose gradients are added up in the order of micro-batches.

    Each micro-batch's loss is already divided by U, so gradients are only added. The rest is as for `Sharded`.

    Args:
        sharers: The ranks that share the batch.
        divided: Those that divide the optimizer states: the same ranks, or, in stage 0, this rank alone.
        microbatches: m, of each rank.

    Attributes:
        squares: After `synchronize()`, the sum of squares of the whole gradient, on the last rank; 0 on others.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        sharers: Comm,
        divided: Comm,
        microbatches: int,
        **options: Any,
    ):
        # Set before the base class, which calls `_prepare`.
        self.sharers, self.microbatches, self.number = sharers.unchecked, microbatches, 0
        super().__init__(module, optimizer_class, divided, **options)
        self.squares = torch.zeros((), dtype=torch.float64, device=self._device())

    def _prepare(self) -> None:
        # Before the first rank's micro-batches there are none, so it adds them up where they are.
        count = self.microbatches if self.sharers.rank else 1
        self._rows = [
            torch.zeros(count, len(line.flat), dtype=self.reduce_dtype or line.flat.dtype, device=line.flat.device)
            for line in self._trainable
        ]
        self._use(0)

    def _use(self, number: int) -> None:
        """Let the next backward leave its gradients in the row of micro-batch `number`."""
        self.number = number
        self._flats = [rows[min(number, len(rows) - 1)] for rows in self._rows]
        self._views = [line.partition.views(flat) for line, flat in zip(self._trainable, self._flats, strict=True)]
        self._hand_out()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """The backward of one micro-batch that is not the last of its step; the next one's gradients lie elsewhere."""
        yield
        # Before the next row is handed out, which takes the place of `.grad`.
        self._collect_all()
        self._use(self.number + 1)

    @torch.no_grad()
    def synchronize(self) -> None:
        self._check_unchanged()
        if self.number != self.microbatches - 1 or any(line.gradient is not None for line in self._trainable):
            raise RuntimeError(
                f"synchronize() after micro-batch {self.number + 1} of {self.microbatches}, or for the second time; "
                "call it once per step, with no_sync() around all backwards but the last"
            )
        self._collect_all()
        self._sum()
        for line, rows in zip(self._trainable, self._rows, strict=True):
            line.gradient = line.partition.shard(rows[0], self.rank)

    def _sum(self) -> None:
        """Add up all ranks' rows in order, into the first row."""
        rank, ranks, group = self.sharers.rank, self.sharers.ranks, self.sharers.group
        onward, back = [], []
        for rows in self._rows:
            total = rows[0]
            if rank > 0:
                before = torch.empty_like(total)
                # The sum over the micro-batches of all ranks before this one. a + b has the same bits as b + a.
                receive(before, rank - 1, group).wait()
                total += before
            for row in rows[1:]:
                total += row
            if rank < ranks - 1:
                # Lines follow one another, so all ranks are busy.
                onward.append(send(total, rank + 1, group))
        for handle in onward:
            handle.wait()  # the memory is free once the sum so far has left
        if rank == ranks - 1:
            self.squares = self._squares()
        for line, rows in zip(self._trainable, self._rows, strict=True):
            shard = line.partition.shard(rows[0], self.rank).numel()
            if rank < ranks - 1:
                # The whole sum, as far as this rank and those before it need it.
                receive(rows[0][: shard * (rank + 1) if self.ranks > 1 else None], rank + 1, group).wait()
            if rank > 0:
                back.append(send(rows[0][: shard * rank if self.ranks > 1 else None], rank - 1, group))
        for handle in back:
            handle.wait()

    def _squares(self) -> Float64[Tensor, ""]:
        """As `Gradients.squares` of one device: parameter by parameter."""
        whole = [
            view
            for line, rows in zip(self._trainable, self._rows, strict=True)
            for view in line.partition.views(rows[0]).values()
        ]
        return sum_of_squares(whole, self._device())

    def _collect_all(self) -> None:
        for line, views in zip(self._trainable, self._views, strict=True):
            for name, view in views.items():
                self._collect(name, line.parameters[name], view)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad()
        for rows in self._rows:
            rows.zero_()
        self._use(0)

    def _all_gather_parameters(self) -> None:
        if self.ranks > 1:  # in stage 0 every rank has stepped all of every line
            super()._all_gather_parameters()


class Losses:
    """The losses of a rank's micro-batches one by one, each divided by U, with which their backward begins as well.

    The model returns logits and the mean loss, and is watched while it trains. `scale` is what the loss is multiplied
    by before each backward.
    """

    def __init__(self, model: nn.Module, microbatches: int, sharers: Comm, scale: Any):
        self.sharers, self.scale = sharers, scale
        self.count = microbatches * sharers.ranks
        self.first = microbatches * sharers.rank
        self.parts: list[Tensor] = []
        model.register_forward_hook(self._see)

    def _see(self, model: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor | None]) -> None:
        _, mean = outputs
        # A look at the held-out text is no part of a step.
        if model.training and mean is not None and mean.requires_grad:
            # Whatever the loop has divided by: first by m and then by dp would round differently for each dp.
            mean.register_hook(lambda gradient: torch.full_like(gradient, self.scale.scale / self.count))
            self.parts.append(mean.detach() / self.count)

    def take(self) -> tuple[Float64[Tensor, " count"], torch.dtype]:
        """The parts of all ranks' micro-batches, 0 for others' than this rank's; and in which dtype to add them."""
        parts, self.parts = torch.stack(self.parts), []
        slots = torch.zeros(self.count, dtype=torch.float64, device=parts.device)
        # float64 carries each of them unchanged; they are added in their own dtype.
        slots[self.first : self.first + len(parts)] = parts.double()
        return slots, parts.dtype


def in_order(parts: Float[Tensor, " count"]) -> Float[Tensor, ""]:
    """((p₀ + p₁) + p₂) + …, one after another, as a loop adds up losses."""
    total = torch.zeros(())
    # One by one on the CPU, as a GPU's sum has an order of its own.
    for part in parts.cpu():
        total = total + part
    return total


def evaluated(means: Sequence[Tensor | None], sharers: Comm) -> float:
    """The mean of losses without gradients: this rank's of each batch, [] each, all ranks' batch by batch."""
    own = torch.stack([mean for mean in means if mean is not None]).double()
    slots = own.new_zeros(len(means), sharers.ranks)
    slots[:, sharers.rank] = own
    dist.all_reduce(slots)  # each rank's own, to which the others add 0
    return in_order(slots.flatten()).item() / slots.numel()
