"""The full form of `minitrain.tensor_parallel.clip_grad_norm` adds shards that several ranks hold, and checks.

Of the ranks that hold the same shard, the first counts it. Gradients must be final: call
`parameter_layout.sum_partial_gradients` before. All ranks scale by the same bits; a rank that clipped by a norm of its
own would let the replicas drift apart.
Also called global norm; `clip_grad_norm` (Megatron-LM); torch's `clip_grad_norm_` on DTensors.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float64
from torch import Tensor

from minitrain.comm.comm import AnyComm, as_comm
from minitrain.tensor_parallel.full.parameter_layout import copies


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor], comm: AnyComm = None) -> Float64[Tensor, ""]:
    """The Euclidean norm of the gradients of the whole model, each element counted once; equal on all ranks.

    Args:
        parameters: This rank's. One that is listed twice counts once; those without a gradient count nothing.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Returns:
        In float64, in which the square of no float32 overflows.

    Raises:
        ValueError: This rank is not in the group, or there is no parameter.
    """
    comm = as_comm(comm).unchecked
    each_once = _each_once(parameters)
    square = torch.zeros((), dtype=torch.float64, device=each_once[0].device)
    for parameter in each_once:
        first_of_its_holders = comm.rank % copies(parameter, comm.ranks) == 0  # neighbouring ranks hold the same piece
        if parameter.grad is not None and first_of_its_holders:
            square += torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).square()
    # One number: the sum over ranks of the squares that each has counted.
    comm.all_reduce(square).wait()
    return square.sqrt()


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float, comm: AnyComm = None) -> Float64[Tensor, ""]:
    """Scale all gradients, in place, so that their norm is at most `max_norm`; as torch's `clip_grad_norm_`.

    Args:
        parameters: This rank's.
        max_norm: The largest norm that is left as it is.
        comm: The tensor-parallel ranks, as of `minitrain.comm.comm.Comm`; None means everyone.

    Returns:
        The norm before clipping, equal on all ranks.

    Raises:
        ValueError: `max_norm` is not positive, this rank is not in the group, or there is no parameter.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm={max_norm} must be positive; 1.0 is usual, float('inf') leaves gradients alone")
    each_once = _each_once(parameters)
    norm = gradient_norm(each_once, comm)
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # stays on the device: no waiting for a GPU to decide
    for parameter in each_once:
        if parameter.grad is not None:
            parameter.grad.mul_(scale.to(parameter.grad.device))
    return norm


def _each_once(parameters: Iterable[Tensor]) -> list[Tensor]:
    each_once = list({id(parameter): parameter for parameter in parameters}.values())
    if not each_once:
        raise ValueError("parameters is empty; give those of a module")
    return each_once
