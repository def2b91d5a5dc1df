"""Clipping by the norm of all gradients, where some parameters are divided over ranks and others are on every rank.

**Idea.** The square of the norm is a sum over all elements of the model. Each rank adds up the squares of its shards,
and the ranks' sums are added. A replicated parameter, such as that of a LayerNorm, has the same gradient on all ranks,
so only rank 0 counts it: **if all ranks did, it would count n times**, and with more ranks we would clip more.
**Source.** Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", §3.2, for clipping;
Megatron-LM's `param_is_not_tensor_parallel_duplicate`, for counting once.
**Sent.** One all-reduce of one float64, 8 bytes. All ranks get the same norm, and so scale by the same factor.
**Cost.** The latency of one small all-reduce.
The full form, `minitrain.comm.clip_grad_norm`, is right in any composition: it adds other axes than this one, shards
that several ranks hold, parameters that are listed twice, a choice of collectives, and checks.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, rank_and_size


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor], group: Group = None) -> Tensor:
    """The norm of the whole model's gradients, each element counted once; equal on all ranks."""
    rank, _ = rank_and_size(group)
    parameters = list(parameters)
    # In float64, because the square of a large float32 would overflow in float32.
    square = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for parameter in parameters:
        # Tensor-parallel layers set this attribute on their shards; all other parameters are replicated.
        sharded = hasattr(parameter, "tensor_parallel_dim")
        # Shards are counted by every rank, replicated parameters by rank 0 alone.
        if parameter.grad is not None and (sharded or rank == 0):
            square += torch.linalg.vector_norm(parameter.grad, dtype=torch.float64).square()
    # Every rank sends the squares it has counted, one number, and receives their sum.
    all_reduce(square, group).wait()
    return square.sqrt()


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float, group: Group = None) -> Tensor:
    """Scale all gradients, in place, so that their norm is at most `max_norm`; returns the norm before."""
    parameters = list(parameters)
    norm = gradient_norm(parameters, group)
    # 1e-6, as in torch's `clip_grad_norm_`, avoids a division by a norm of 0.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        # The same factor on all ranks, so that replicated parameters stay equal.
        if parameter.grad is not None:
            parameter.grad *= scale
    return norm


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
