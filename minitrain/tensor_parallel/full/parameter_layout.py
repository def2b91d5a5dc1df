"""How a parameter is laid out over the tensor-parallel ranks, and what follows for its gradient.

A parameter is **replicated** (every rank holds all of it, and its gradient is whole on every rank: norms, the bias of a
row-parallel layer), or **sharded** (rank r holds a piece of one dim, and the gradient of that piece). Either may also
be **partial**: each rank's gradient is a partial sum. This happens where ranks that hold the same parameter apply it to
different inputs: key and value heads that several ranks share, or the norms of a sequence shard (chapter 09).
`sum_partial_gradients` adds those sums. Code that adds up gradients or norms, or writes checkpoints, asks here.

The layout is kept in attributes of the parameter, so that no separate list is needed. A parameter without them is
replicated. `copy.deepcopy` of a parameter drops its attributes; a `ParallelLayer` marks its own again.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.clip_grad_norm import pieces, shard_along
from minitrain.comm.comm import AnyComm, Comm, as_comm


def mark(parameter: Tensor, dim: int, shards: int | None = None, comm: AnyComm = None) -> None:
    """Declare that each rank holds a piece of `dim` of the whole parameter.

    Args:
        parameter: This rank's piece.
        dim: The dim that is cut.
        shards: Number of different pieces, if fewer than ranks: each is then held by ranks/shards neighboring ranks.
            None: as many as ranks.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.
    """
    comm = as_comm(comm)
    # In a norm, only the first of the ranks that share a piece counts it.
    shard_along(parameter, comm, comm.rank % (comm.ranks // (shards or comm.ranks)) == 0)
    said = {"tensor_parallel": "sharded", "tensor_parallel_dim": dim, "tensor_parallel_shards": shards}
    vars(parameter).update(said)


def sharded_dim(parameter: Tensor) -> int | None:
    """The dim of which each rank holds a piece; None for a replicated parameter."""
    return getattr(parameter, "tensor_parallel_dim", None)


def shards(parameter: Tensor, ranks: int) -> int:
    """Into how many different pieces the parameter is cut over `ranks` ranks; 1 where it is replicated."""
    if sharded_dim(parameter) is None:
        return 1
    return getattr(parameter, "tensor_parallel_shards", None) or ranks


def copies(parameter: Tensor, ranks: int) -> int:
    """How many of `ranks` ranks hold the same piece: a sum over ranks counts it that many times."""
    return ranks // shards(parameter, ranks)


def mark_partial(parameter: Tensor) -> None:
    """Declare that each rank's gradient is a partial sum, to be added over the ranks that hold the same piece."""
    vars(parameter)["tensor_parallel_partial"] = True


def is_partial(parameter: Tensor) -> bool:
    """Whether the gradient of each rank is a partial sum."""
    return getattr(parameter, "tensor_parallel_partial", False)


@torch.no_grad()
def sum_partial_gradients(module: nn.Module, comm: AnyComm = None) -> None:
    """Add the gradients of partial parameters over the ranks that hold the same piece: one all-reduce for each dtype.

    To be called once per step, after the last backward, and where there is a stage of ZeRO after its `synchronize()`. A
    second call would add the sums again. Gradients that are None are left out, and must be None on all ranks.

    Args:
        module: The module with the parameters, the same on all ranks; or the stage of ZeRO around it.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Raises:
        ValueError: This rank is not in the group; with checking also where ranks have gradients for other parameters.

    Examples:
        >>> from minitrain.tensor_parallel import ColumnParallelLinear, sum_partial_gradients
        >>> key = ColumnParallelLinear(64, 16, shards=2)  # two heads on four ranks
        >>> (rank * key(torch.ones(64))).sum().backward()
        >>> sum_partial_gradients(key)
    """
    each_once = {id(piece.parameter): piece for piece in pieces(module)}.values()
    sum_partial([(piece.parameter, piece.gradient) for piece in each_once if piece.gradient is not None], as_comm(comm))


@torch.no_grad()
def sum_partial(found: Iterable[tuple[Tensor, Tensor]], comm: Comm) -> None:
    """As `sum_partial_gradients`, of these parameters' gradients, or of the same piece of each on all ranks."""
    rank, ranks = comm.rank, comm.ranks
    kinds: dict[Any, list[tuple[Tensor, Tensor]]] = {}
    for parameter, gradient in found:
        if is_partial(parameter) and copies(parameter, ranks) > 1:
            kinds.setdefault((gradient.dtype, gradient.device), []).append((parameter, gradient))
    for pairs in kinds.values():
        gradients = [gradient for _, gradient in pairs]
        slots = [shards(parameter, ranks) for parameter, _ in pairs]
        sizes = [count * gradient.numel() for count, gradient in zip(slots, gradients, strict=True)]
        # A slot for each piece, at 0 on ranks that have another: so one all-reduce over all ranks adds over exactly
        # those that share one. It sends more than groups of their own would, and needs no groups.
        bucket = gradients[0].new_zeros(sum(sizes))
        mine = [
            part.view(count, -1)[rank * count // ranks] for part, count in zip(bucket.split(sizes), slots, strict=True)
        ]
        for slot, gradient in zip(mine, gradients, strict=True):
            slot.copy_(gradient.reshape(-1))
        # The one all-reduce: every slot gets the sum over the ranks that wrote to it.
        comm.all_reduce(bucket).wait()
        for slot, gradient in zip(mine, gradients, strict=True):
            gradient.copy_(slot.view_as(gradient))


class ParallelLayer(nn.Module):
    """A layer of which each rank of `comm` holds a part; None means everyone."""

    def __init__(self, comm: AnyComm = None):
        super().__init__()
        self.comm = as_comm(comm)
        self.rank, self.ranks = self.comm.rank, self.comm.ranks

    def mark_parameters(self) -> None:
        """Declare how the layer's own parameters are laid out over the ranks."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.mark_parameters()  # `to_empty` makes new parameters, without attributes
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.mark_parameters()  # `load_state_dict(assign=True)` puts others in their place

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = self.__class__.__new__(self.__class__)
        memo[id(self)] = copied
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        # A parameter's own deepcopy drops its attributes.
        copied.mark_parameters()
        return copied
