"""Clipping by the norm of all gradients, where some parameters are divided over ranks and others are on every rank.

**Idea.** The square of the norm is a sum over all elements of the model. Each rank adds up the squares of its shards,
and the ranks' sums are added. A replicated parameter, such as that of a LayerNorm, has the same gradient on all ranks,
so rank 0 alone counts it: **counted by all, it would count n times**, and more ranks would clip more.
**Source.** Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", §3.2; counting once:
Megatron-LM, `param_is_not_tensor_parallel_duplicate`.
**Sent.** One all-reduce of one number in float64, 8 bytes, so that all ranks scale by the same bits.
**Cost.** One latency.
The full form, `minitrain.tensor_parallel.full.clip_grad_norm`, adds shards that several ranks hold, parameters that are
listed twice, any set of collectives, and checks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, place


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor], group: Group = None) -> Tensor:
    """The norm of the whole model's gradients, each element counted once; equal on all ranks."""
    parameters, (rank, _) = list(parameters), place(group)
    # In float64, in which the square of no float32 overflows.
    square = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for parameter in parameters:
        # A parallel layer notes here which dim it has divided; without a note, all ranks have all.
        sharded = hasattr(parameter, "tensor_parallel_dim")
        # Rank 0 counts for everyone what everyone has.
        if parameter.grad is not None and (sharded or rank == 0):
            square += torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).square()
    # One number per rank: the sum of all squares that have been counted.
    all_reduce(square, group).wait()
    return square.sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float, group: Group = None) -> Tensor:
    """Scale all gradients, in place, so that their norm is at most `max_norm`; returns the norm before."""
    parameters = list(parameters)
    norm = gradient_norm(parameters, group)
    # 1e-6 as in torch's `clip_grad_norm_`, which would otherwise divide by a norm of 0.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        # One factor for all gradients on all ranks, so that copies stay copies.
        if parameter.grad is not None:
            parameter.grad *= scale
    return norm


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
