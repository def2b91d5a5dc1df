"""Gradient accumulation: a batch that is too large goes through in A micro-batches.

**Idea.** A rank without memory for its whole batch cuts it into A equal micro-batches, goes forward and backward
through one after the other, and lets their gradients add up in `.grad`.

**Source.** Goyal et al. 2017, "Accurate, Large Minibatch SGD", §3; `no_sync` of Li et al. 2020, §3.2.4.
**Sent.** The gradients once per step, with the last micro-batch, and one number, the loss.
**Cost.** The activations of one micro-batch, a factor of A less. Small micro-batches use a device less well.
Where micro-batches or ranks count different numbers of tokens, each loss is a sum, divided by the count of the whole
batch and multiplied by n, because `synchronize()` averages over the ranks.
A micro-batch is also called a gradient-accumulation step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import all_reduce, rank_and_size


def accumulate(model: Any, micro_batches: Sequence[Any], loss_of: Callable[[Any, Any], Tensor]) -> Tensor:
    """The gradients of the mean loss over all micro-batches of all ranks; returns that loss.

    `model` is one of this chapter's rungs, and `loss_of(model, micro_batch)` a mean loss.
    **Trap: a mean of means is the mean only if all micro-batches count equally many tokens.**
    """
    assert micro_batches, "no micro-batch: every rank needs the same number of them, at least one"
    losses = []
    for number, micro_batch in enumerate(micro_batches, 1):
        # The gradients are sent once, while the last micro-batch goes backward. (The naive rung never sends by itself.)
        local = number < len(micro_batches) and hasattr(model, "no_sync")
        with model.no_sync() if local else nullcontext():
            # Divided by A, since .grad adds the micro-batches' gradients up and does not average.
            loss = loss_of(model, micro_batch) / len(micro_batches)
            loss.backward()
        losses.append(loss.detach())
    model.synchronize()
    mean = torch.stack(losses).sum() / rank_and_size(model.group)[1]
    # One number: the sum of every rank's 1/n is the mean loss of the whole batch.
    all_reduce(mean, model.group).wait()
    return mean


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
