"""The full form of `minitrain.tensor_parallel.mappings` adds split and gather, any collectives, and checks.

| operator | paper | forward | backward |
|---|---|---|---|
| `copy_to_parallel` | f | x as it is | all-reduce of the partial sums |
| `reduce_from_parallel` | g | all-reduce of the partial sums | the gradient as it is |
| `split_to_parallel` | – | this rank's part of the last dim | all-gather of the parts |
| `gather_from_parallel` | – | all-gather of the parts | this rank's part of the gradient |

**Cost.** `minitrain.costs.communication.ring_all_reduce`, or `ring_all_gather`, which is half of it.
Also called redistribution from `Replicate()`, `Partial()` and `Shard(-1)` (PyTorch DTensor).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.tensor_parallel.full.checks import check_same, check_split

Map = Callable[[Tensor, Comm], Tensor]


class Conjugate(torch.autograd.Function):
    """One of two linear maps of which each is the other's backward, so both can be differentiated any number of times.

    `there` and `back` take the tensor and the ranks; `back` is the conjugate, which backward applies.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: Comm, there: Map, back: Map) -> Tensor:
        # All ranks have compared x, so backward need not compare what it sends.
        ctx.comm, ctx.turned = comm.unchecked, (back, there)
        return there(x, comm)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return Conjugate.apply(gradients[0], ctx.comm, *ctx.turned), None, None, None


def _copy(x: Tensor, comm: Comm) -> Tensor:
    return x.view_as(x)


def _reduce(x: Tensor, comm: Comm) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)  # autograd may hand x to others too
    # Every rank puts its partial sum in and gets the sum out.
    comm.all_reduce(total).wait()
    return total


def _split(x: Tensor, comm: Comm) -> Tensor:
    part = x.tensor_split(comm.ranks, dim=-1)[comm.rank]
    return part.clone(memory_format=torch.contiguous_format)  # a view would keep the rest of x


def _gather(x: Tensor, comm: Comm) -> Tensor:
    parts = x.new_empty(comm.ranks, *x.shape)  # [rank, *batch, shard]
    parts[comm.rank] = x
    # Every rank brings one part and gets all of them, one after the other.
    comm.all_gather(parts).wait()
    return parts.movedim(0, -2).flatten(-2)  # [*batch, rank · shard]


# The operators by name. `comm`: the tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone. With
# checking they raise a ValueError, on every rank alike, if an x that must be the same on all ranks differs, or if parts
# and partial sums have different shapes or dtypes. Split and gather assume that all ranks use the unsharded tensor in
# the same way: then its gradient is whole on every rank, and each takes its part without adding.


def copy_to_parallel(x: Float[Tensor, "*shape"], comm: AnyComm = None) -> Float[Tensor, "*shape"]:
    """f: x, which is the same on all ranks, as it is; backward an all-reduce."""
    comm = as_comm(comm)
    check_same("copy_to_parallel", "x", x, comm)
    return Conjugate.apply(x, comm, _copy, _reduce)


def reduce_from_parallel(x: Float[Tensor, "*shape"], comm: AnyComm = None) -> Float[Tensor, "*shape"]:
    """g: an all-reduce of x, this rank's partial sum; backward the gradient as it is."""
    return Conjugate.apply(x, as_comm(comm), _reduce, _copy)


def split_to_parallel(x: Float[Tensor, "*batch width"], comm: AnyComm = None) -> Float[Tensor, "*batch shard"]:
    """This rank's part of the last dim of x, which is the same on all ranks; backward an all-gather.

    Raises:
        ValueError: The last dim does not divide by the ranks.
    """
    comm = as_comm(comm)
    check_split("width", x.shape[-1], comm.ranks)
    check_same("split_to_parallel", "x", x, comm)
    return Conjugate.apply(x, comm, _split, _gather)


def gather_from_parallel(x: Float[Tensor, "*batch shard"], comm: AnyComm = None) -> Float[Tensor, "*batch width"]:
    """The ranks' parts side by side in the last dim; backward this rank's part of the gradient."""
    return Conjugate.apply(x, as_comm(comm), _gather, _split)


f, g = copy_to_parallel, reduce_from_parallel  # the paper's names
