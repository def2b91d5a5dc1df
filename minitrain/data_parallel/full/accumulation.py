"""`minitrain.data_parallel.accumulation` for micro-batches of any size, and the learning rate of large batches.

**The trap.** A mean over ranks, or over micro-batches, of mean losses is wrong as soon as they count different numbers
of tokens (padding, answers of different lengths): **a token of a short micro-batch then weighs more than one of a long
one.** No error is raised, and the model learns something else. We divide by the count of the whole batch, on all ranks.

**Source.** Goyal et al. 2017, "Accurate, Large Minibatch SGD": §2.1 linear scaling, §3 the normalization of the loss.
**Sent.** One number more, before the first backward: the count by which all ranks divide.
**Waits for the GPU** once per step, to read that count.
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


def scaled_learning_rate(base: float, batch: int, base_batch: int) -> float:
    """η · k for a batch k times as large (Goyal et al. 2017, §2.1).

    k steps of η go −η Σⱼ ∇lⱼ(wⱼ); one step of kη with the k batches together goes −kη · (1/k) Σⱼ ∇lⱼ(w). They are equal
    as long as the gradient does not change over the k steps. This holds for SGD; Adam's step does not grow with the
    gradient, and √k is often used (Malladi et al. 2022).

    Args:
        base: η, found to be good for `base_batch`.
        batch: Samples that all ranks and micro-batches together take in a step.
        base_batch: Samples in a step for which η was found.
    """
    if batch < 1 or base_batch < 1:
        raise ValueError(f"batch={batch} and base_batch={base_batch} must be at least 1")
    return base * batch / base_batch
