"""The full form of `minitrain.optimizers.adafactor`: torch's Adafactor, which can also step ZeRO's flat shards.

**Idea.** A shard may begin and end in the middle of a row. Sums of rows and columns, however, can be added over ranks,
and so can the squares behind each RMS. R and C are so small that every rank keeps all of them.

**Source.** As `minitrain.optimizers.adafactor`. Open `optimizers/full/on_shards.py` first.
**Sent.** Two all-reduces per step: r + c + 1 numbers for each matrix and E + 1 for each vector, then one per tensor.
**Cost.** w(r + c) bytes of states for a matrix and wE for a vector, on every rank: `minitrain.costs.optimizers`.
"""

from __future__ import annotations

import inspect
import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from minitrain.optimizers.full.on_shards import OnShards
from minitrain.zero.full.partition import Piece


class Adafactor(OnShards, torch.optim.Adafactor):
    """`torch.optim.Adafactor`, with its options and, on whole tensors, its steps; and the same on flat shards.

    As in torch, `lr` is the largest relative step, and of a tensor with more than two dims the last two are factored.

    Examples:
        >>> from minitrain.optimizers import Adafactor
        >>> from minitrain.zero import Zero1
        >>> model = Zero1(model, Adafactor, lr=0.01)
    """

    whole_states = ("row_var", "col_var", "variance")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; parameters without a gradient stay as they are. `closure` is called first, as by torch."""
        if self._comm is None:
            # Without the hooks that torch wraps around a step: they are run around this one.
            return inspect.unwrap(torch.optim.Adafactor.step)(self, closure)
        loss = self.loss_of(closure)
        tensors = [
            (shard, -gradient if group["maximize"] else gradient, group, piece)
            for shard, gradient, group in self.found()
            for piece in self.pieces(shard)
        ]
        if not tensors:
            return loss
        sums = [
            torch.cat([*squares(gradient[piece.own], piece), shard[piece.own].square().sum().view(1)])
            for shard, gradient, _, piece in tensors
        ]
        everyone = self.summed(torch.cat(sums)).split([each.numel() for each in sums])
        updates, alphas = [], []
        for (shard, gradient, group, piece), total in zip(tensors, everyone, strict=True):
            state = self._state(shard, piece)
            if piece.name == self.pieces(shard)[0].name:
                state["step"] += 1  # once for all tensors of the shard
            t, elements = state["step"].item(), max(1, piece.shape.numel())
            total = total.to(shard.dtype)  # shards of several dtypes share the all-reduce
            rho = min(float(group["lr"]), t**-0.5)
            # The size before the step and before decay; ε₂ lets a tensor of zeros begin.
            alphas.append((total[-1] / elements).sqrt().clamp(min=group["eps"][1]) * rho)
            eps = torch.finfo(shard.dtype).eps if group["eps"][0] is None else group["eps"][0]
            v = self._second_moment(state, piece, total[:-1], t ** group["beta2_decay"], eps)
            updates.append(gradient[piece.own] * v.clamp(min=eps * eps).rsqrt())
        # The second all-reduce: how large is each tensor's update as a whole?
        sizes = self.summed(torch.stack([update.square().sum() for update in updates]))
        for (shard, _, group, piece), update, alpha, size in zip(tensors, updates, alphas, sizes, strict=True):
            rms = (size / max(1, piece.shape.numel())).sqrt()
            # Decay comes after α was taken from the old size, as in torch.
            own = shard[piece.own].mul_(1 - group["lr"] * group["weight_decay"])
            own.sub_(alpha / (rms / group["d"]).clamp(min=1) * update)
        return loss

    def _state(self, shard: Tensor, piece: Piece) -> dict[str, Any]:
        """The states of a shard, with zeros for a tensor that has none yet."""
        state, shape = self.state[shard], piece.shape
        if not state:
            state["step"] = torch.tensor(0.0)
            state.update({kind: {} for kind in self.whole_states})
        if len(shape) < 2:
            state["variance"].setdefault(piece.name, shard.new_zeros(shape))
        else:
            state["row_var"].setdefault(piece.name, shard.new_zeros(*shape[:-1], 1))
            state["col_var"].setdefault(piece.name, shard.new_zeros(*shape[:-2], 1, shape[-1]))
        return state

    def _second_moment(self, state: dict[str, Any], piece: Piece, sums: Tensor, weight: float, eps: float) -> Tensor:
        """V of this rank's piece, after the running means have taken in the sums of all ranks' squares."""
        if len(piece.shape) < 2:
            variance = state["variance"][piece.name].lerp_(sums.view(piece.shape), weight)
            return variance.view(-1)[piece.start : piece.start + length(piece)]
        *_, rows, columns = piece.shape
        row, col = state["row_var"][piece.name], state["col_var"][piece.name]
        row.lerp_(sums[: row.numel()].view_as(row) / columns, weight)
        col.lerp_(sums[row.numel() :].view_as(col) / rows, weight)
        first, before, count = reach(piece)
        matrix = torch.arange(first, first + count, device=row.device) // rows  # a stack of matrices has several
        scaled = row / row.mean(dim=-2, keepdim=True).clamp(min=eps)
        v = scaled.view(-1, 1)[first : first + count] * col.view(-1, columns)[matrix]
        return v.view(-1)[before : before + length(piece)]


def squares(gradient: Tensor, piece: Piece) -> tuple[Tensor, ...]:
    """What a piece adds to the sums of squares over rows and over columns; of a vector the squares themselves."""
    if len(piece.shape) < 2:
        everything = gradient.new_zeros(piece.shape.numel())
        everything[piece.start : piece.start + length(piece)] = gradient.square()
        return (everything,)
    *stack, rows, columns = piece.shape
    first, before, count = reach(piece)
    # As whole rows: what other ranks have of the first and of the last row counts as 0 here.
    square = pad(gradient, (before, count * columns - before - length(piece))).view(count, columns).square()
    row = gradient.new_zeros(math.prod(stack) * rows)
    row[first : first + count] = square.sum(1)
    # How many of these rows each matrix of the stack has. (index_add_ adds in any order on a GPU: ranks with the same
    # gradients would come to different parameters.)
    starts = [rows * number for number in range(math.prod(stack) + 1)]
    cuts = [min(max(start - first, 0), count) for start in starts]
    each = square.split([end - begin for begin, end in pairwise(cuts)])
    return row, torch.cat([part.sum(0) for part in each])


def length(piece: Piece) -> int:
    return piece.own.stop - piece.own.start


def reach(piece: Piece) -> tuple[int, int, int]:
    """The rows that a piece reaches into: the first, how many of its elements come before the piece, and the count."""
    first, before = divmod(piece.start, max(1, piece.shape[-1]))
    return first, before, -(-(before + length(piece)) // max(1, piece.shape[-1]))
