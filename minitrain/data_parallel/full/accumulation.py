"""`minitrain.data_parallel.accumulation` for micro-batches of any size.

**The trap.** A mean over ranks, or over micro-batches, of mean losses is wrong as soon as they count different numbers
of tokens (padding, answers of different lengths): **a token of a short micro-batch then weighs more than one of a long
one.** No error is raised, and the model learns something else. We divide by the count of the whole batch, on all ranks.

**Source.** Goyal et al. 2017, "Accurate, Large Minibatch SGD": §3, the normalization of the loss.
**Sent.** One number more, before the first backward: the count by which all ranks divide.
**Waits for the GPU** once per step, to read that count.
The learning rate that goes with a larger batch: `minitrain.optimizers.scaling`.
Also called `gradient_accumulation_steps` (DeepSpeed, Hugging Face), the number of micro-batches (Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from minitrain.data_parallel.full.replica import Replica

MicroBatch = TypeVar("MicroBatch")


def accumulate(
    model: Replica,
    micro_batches: Sequence[MicroBatch],
    loss_sum: Callable[[nn.Module, MicroBatch], Float[Tensor, ""]],
    count: Callable[[MicroBatch], int],
) -> Float64[Tensor, ""]:
    """The gradients of the mean loss over everything that all micro-batches of all ranks count; then clip and step.

    Ranks may bring different numbers of micro-batches, and none at all.

    Args:
        model: The module, wrapped.
        micro_batches: This rank's.
        loss_sum: The *sum* of a micro-batch's losses, not their mean.
        count: How many losses that sum has: tokens that are targets, or samples.

    Returns:
        The mean loss, equal on all ranks.

    Raises:
        ValueError: On every rank alike: nothing is counted anywhere.
    """
    device = next(model.parameters()).device
    counted = torch.tensor(sum(map(count, micro_batches)), dtype=torch.float64, device=device)
    total = _sum_over_ranks(model, counted).item()
    if not total:
        raise ValueError("micro_batches: no rank counts a single loss, so there is no mean; bring at least one target")
    mean = torch.zeros_like(counted)
    for number, micro_batch in enumerate(micro_batches, 1):
        # Gradients are sent once, in the backward of the last one.
        with nullcontext() if number == len(micro_batches) else model.no_sync():
            loss = loss_sum(model, micro_batch)
            # synchronize() averages over ranks, so each brings n times its share: (1/n) Σᵣ n · lossᵣ/total.
            (loss * (model.ranks / total)).backward()
        mean += loss.detach() / total
    model.synchronize()
    return _sum_over_ranks(model, mean)


def _sum_over_ranks(model: Replica, number: Float64[Tensor, ""]) -> Float64[Tensor, ""]:
    # Eight bytes: every rank's number is added up. In float64 counts are exact up to 2⁵³.
    model.comm.all_reduce(number).wait()
    return number
