"""A pipeline without a flush: 1F1B whose steady state ends only with the data, because no step ends in between.

**Idea.** 1F1B drains the pipeline at the end of each step, updates the weights, and fills it again. If every stage
updates its own weights as soon as it has a gradient, the next micro-batches can follow without a gap.
**Source.** Narayanan et al. 2019, "PipeDream", §3.2. The 1F1B of `one_f_one_b.py`, which drains, is called
PipeDream-flush in later papers.
**Sent.** The same messages as in 1F1B.
**Cost.** One bubble of (p−1)(F+B) for all N micro-batches instead of one per step of m. The price is that weights
change between the forward and the backward of a micro-batch; `no_stashing`, `pipedream`, `vertical_sync` and
`two_buffered` decide which weights each of the two uses.
Also called asynchronous pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minitrain.comm.messages import Group, exchange, rank_and_size, receive, send

Weights = dict[str, Tensor]  # one version of a stage's weights, by the names of its parameters
Loss = Callable[[Tensor, Tensor], Tensor]


def stream(
    microbatches: int,
    forward: Callable[[int, Tensor | None], Tensor],
    backward: Callable[[int, Tensor | None], Tensor | None],
    template: Tensor,
    group: Group = None,
) -> None:
    """Takes all micro-batches through this rank's stage and back.

    Args:
        microbatches: N, of the whole training.
        forward: `forward(i, x)` takes micro-batch i; returns what the next stage needs. On the first rank x is None.
        backward: `backward(i, grad_y)`, with the update; returns what the previous stage needs. On the last rank grad_y
            is None.
        template: Any tensor with the shape and dtype of what passes between two stages.
        group: The ranks of the pipeline, in the order of the stages.
    """
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1

    def receive_from(neighbor: int, leaving: Tensor | None = None) -> Tensor:
        """A tensor from a neighboring stage, in exchange for `leaving` unless that is None."""
        arriving = torch.empty_like(template)
        if leaving is None:
            receive(arriving, neighbor, group).wait()
        else:
            # Both directions at once, because two sends would wait for each other.
            exchange(leaving, neighbor, arriving, neighbor, group).wait()
        return arriving

    # 1. Warm-up: one forward for each stage after this one.
    warmup = min(ranks - 1 - rank, microbatches)
    for i in range(warmup):
        y = forward(i, None if first else receive_from(rank - 1))
        assert last or (y.shape, y.dtype) == (template.shape, template.dtype), "not like the template"
        # Activations go to the next stage, which has no gradient to return yet.
        send(y, rank + 1, group).wait()
    # 2. Steady state: one forward and one backward, over the whole training.
    grad_x = None  # the gradient that the previous stage has yet to receive
    for i in range(warmup, microbatches):
        # The previous stage receives grad_x, and sends the activations of micro-batch i.
        y = forward(i, None if first else receive_from(rank - 1, grad_x))
        assert last or (y.shape, y.dtype) == (template.shape, template.dtype), "not like the template"
        # The next stage receives these activations, and sends the gradient of the oldest ones.
        grad_x = backward(i - warmup, None if last else receive_from(rank + 1, y))
    # 3. Cool-down, once, after the last micro-batch.
    for i in range(microbatches - warmup, microbatches):
        if grad_x is not None:
            # The previous stage can now do its own backward.
            send(grad_x, rank - 1, group).wait()
        grad_x = backward(i, receive_from(rank + 1))
    if grad_x is not None:
        # The gradient of the last backward of all.
        send(grad_x, rank - 1, group).wait()


def updated(weights: Weights, gradients: Sequence[Tensor], lr: float) -> Weights:
    """The next version of the weights, w − ν·gradient, in memory of its own; the old version stays as it is."""
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (w.detach() - lr * gradient).requires_grad_() for (name, w), gradient in pairs}


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
