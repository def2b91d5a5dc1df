"""`minitrain.matrix_product.to_everyone` with checks: every rank learns of an error before anything is sent.

Shapes and dtypes that differ between ranks, tensors with gaps, and parts of the wrong size are refused by name.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm.comm import AnyComm, Comm, as_comm
from minitrain.comm.control import agree, gather_objects
from minitrain.comm.messages import exchange


def total(tensor: Tensor, comm: AnyComm = None) -> Tensor:
    """The sum of all ranks' tensors, on every rank.

    Args:
        tensor: This rank's term of the sum; contiguous, of one shape and dtype on all ranks.
        comm: The ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Raises:
        ValueError: On every rank, where `comm` checks: shapes or dtypes differ, or a tensor is not contiguous.
    """
    comm = as_comm(comm)
    if comm.checks:
        agree("total", tensor, comm.group)
    summands = _exchanged(tensor, [tensor.shape] * comm.ranks, comm)
    result = torch.zeros_like(tensor)
    for summand in summands:  # in the order of ranks, whatever the order of arrival: the same bits on every rank
        result += summand
    return result


def collect(part: Tensor, size: int, dim: int = 0, comm: AnyComm = None) -> Tensor:
    """Put together a tensor that was split over ranks along `dim`, on every rank.

    Args:
        part: This rank's part, as `torch.tensor_split` cuts it; contiguous.
        size: The whole tensor's size along `dim`.
        dim: The dim that is split.
        comm: The ranks, as of `minitrain.comm.comm.Comm`; None means everyone. If it does not check, only the rank
            itself notices a wrong part.

    Raises:
        ValueError: A part is not the one that its rank should bring.
    """
    comm = as_comm(comm)
    rank, ranks = comm.rank, comm.ranks
    shapes = [list(part.shape) for _ in range(ranks)]
    for peer in range(ranks):
        shapes[peer][dim] = size // ranks + (peer < size % ranks)  # as torch.tensor_split cuts
    problems = _problem(part, shapes[rank][dim], size, dim, rank, ranks)
    if comm.checks:
        problems = "; ".join(filter(None, gather_objects(problems, comm.group)))
    if problems:
        raise ValueError(f"collect: {problems}")
    return torch.cat(_exchanged(part, shapes, comm), dim)


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


def _exchanged(tensor: Tensor, shapes: list, comm: Comm) -> list[Tensor]:
    """Every rank's tensor, in the order of ranks."""
    rank, ranks = comm.rank, comm.ranks
    tensors = [tensor if peer == rank else tensor.new_empty(shapes[peer]) for peer in range(ranks)]
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        # Both directions at once: if each rank first sent and then received, all would wait for ever.
        exchange(tensor, to, tensors[source], source, group=comm.group).wait()
    return tensors
