"""`minitrain.matrix_product.to_everyone`, and beyond it checks: every rank hears of an error before anything is sent.

Shapes and dtypes that differ between ranks, tensors with gaps, and parts of the wrong size are refused by name.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import agree, checking, gather_objects
from minitrain.comm.messages import exchange


def total(tensor: Tensor, group: dist.ProcessGroup | None = None, *, check: bool | None = None) -> Tensor:
    """The sum of all ranks' tensors, on every rank.

    Args:
        tensor: This rank's summand; contiguous, of one shape and dtype on all ranks.
        group: The ranks that take part; None means everyone.
        check: Compare shapes and dtypes across ranks first; None: in demos and notebooks.

    Raises:
        ValueError: With `check`, on every rank: shapes or dtypes differ, or a tensor is not contiguous.
    """
    if checking(check):
        agree("total", tensor, group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    summands = _exchanged(tensor, [tensor.shape] * ranks, rank, group)
    result = torch.zeros_like(tensor)
    for summand in summands:  # in the order of ranks, whatever the order of arrival: the same bits on every rank
        result += summand
    return result


def collect(
    part: Tensor, size: int, dim: int = 0, group: dist.ProcessGroup | None = None, *, check: bool | None = None
) -> Tensor:
    """Put a tensor together that was split over ranks along `dim`, on every rank.

    Args:
        part: This rank's part, as `torch.tensor_split` cuts it; contiguous.
        size: The whole tensor's size along `dim`.
        dim: The dim that is split.
        group: The ranks that take part; None means everyone.
        check: Tell every rank of a wrong part; None: in demos and notebooks. Without it only the rank itself knows.

    Raises:
        ValueError: A part is not the one that its rank should bring.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    shapes = [list(part.shape) for _ in range(ranks)]
    for peer in range(ranks):
        shapes[peer][dim] = size // ranks + (peer < size % ranks)  # as torch.tensor_split cuts
    problems = _problem(part, shapes[rank][dim], size, dim, rank, ranks)
    if checking(check):
        problems = "; ".join(filter(None, gather_objects(problems, group)))
    if problems:
        raise ValueError(f"collect: {problems}")
    return torch.cat(_exchanged(part, shapes, rank, group), dim)


def _problem(part: Tensor, expected: int, size: int, dim: int, rank: int, ranks: int) -> str:
    shape = tuple(part.shape)
    if part.shape[dim] != expected:
        return (
            f"`part` of shape {shape} on rank {rank} should be {expected} long in dim {dim}, "
            f"as size={size} over {ranks} ranks; cut it with torch.tensor_split"
        )
    if not part.is_contiguous():
        return f"`part` of shape {shape} on rank {rank} is not contiguous; bring part.contiguous()"
    return ""


def _exchanged(tensor: Tensor, shapes: list, rank: int, group: dist.ProcessGroup | None) -> list[Tensor]:
    """Every rank's tensor, in the order of ranks."""
    ranks = len(shapes)
    tensors = [tensor if peer == rank else tensor.new_empty(shapes[peer]) for peer in range(ranks)]
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        # Both directions at once: if each rank first sent and then received, all would wait for ever.
        exchange(tensor, to, tensors[source], source, group=group).wait()
    return tensors
