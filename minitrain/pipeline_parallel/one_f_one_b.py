"""1F1B: a few forwards to fill the pipeline, one forward and one backward in turn, then the backwards that are left.

**Idea.** GPipe holds all micro-batches, since its backwards begin late. Here a rank starts only as many forwards as the
stages after it need to get busy; from then on, each forward is followed by the backward of its oldest micro-batch.
**Source.** Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
§2.2.1; the paired exchanges are Megatron-LM's `send_forward_recv_backward` and `send_backward_recv_forward`.
**Sent.** What GPipe sends. In the steady state both neighbours have something for each other; as lone sends these would
wait for each other forever under NCCL, so both travel in one exchange.
**Cost.** GPipe's time, but rank r of n holds at most n − r micro-batches.
The full form, `minitrain.pipeline_parallel.executor`, adds what the head of `gpipe.py` lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, exchange, place, receive, send


def step(
    stage: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    template: Tensor,
    group: Group = None,
) -> Tensor | None:
    """Add this stage's gradients of the mean loss; arguments and result are `gpipe.step`'s."""
    rank, ranks = place(group)
    first, last = rank == 0, rank == ranks - 1
    held: deque[tuple[Tensor, Tensor]] = deque()  # input and output of each micro-batch
    mean = template.new_zeros(())

    def forward(number: int, x: Tensor) -> Tensor:
        y = stage(x if first else x.requires_grad_())
        if last:
            # One device takes the mean over all samples: each micro-batch counts 1/m.
            y = loss(y, targets[number]) / len(inputs)
            mean.add_(y.detach())
        assert last or y.shape == template.shape, "a stage returns the template's shape"
        held.append((x, y))  # y holds the graph of the micro-batch until its backward
        return y.detach().contiguous()

    def backward(grad_y: Tensor | None) -> Tensor | None:
        x, y = held.popleft()  # the oldest
        y.backward(grad_y)
        assert first or x.grad is not None, "a stage's output depends on its input"
        return None if first else x.grad  # what the stage before waits for

    def receive_from(neighbour: int, leaving: Tensor | None = None) -> Tensor:
        """What a neighbour has for this rank, in exchange for `leaving` if there is something."""
        arriving = torch.empty_like(template)
        if leaving is None:
            receive(arriving, neighbour, group).wait()
        else:
            # Both directions in one call: lone sends would wait for each other.
            exchange(leaving, neighbour, arriving, neighbour, group).wait()
        return arriving

    # Warm-up: a forward for each stage that follows, so that all of them get work.
    warmup = min(ranks - 1 - rank, len(inputs))
    for number in range(warmup):
        y = forward(number, inputs[number] if first else receive_from(rank - 1))
        # Activations go to the next stage, which has no gradient to give back yet.
        send(y, rank + 1, group).wait()
    # Steady state: one forward, one backward. At most warmup + 1 micro-batches are held.
    grad_x = None
    for number in range(warmup, len(inputs)):
        # The stage before gets the gradient that it waits for, and gives activations.
        y = forward(number, inputs[number] if first else receive_from(rank - 1, grad_x))
        # The next stage gets these activations, and gives the gradient of older ones.
        grad_x = backward(None if last else receive_from(rank + 1, y))
    # Cool-down: the backwards that are left, with nothing to exchange any more.
    for _ in range(warmup):
        if grad_x is not None:
            send(grad_x, rank - 1, group).wait()  # a gradient, to the stage before
        grad_x = backward(receive_from(rank + 1))
    if grad_x is not None:
        send(grad_x, rank - 1, group).wait()  # the last one
    return mean if last else None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
