"""1F1B: a few forwards to fill the pipeline, one forward and one backward in turn, then the backwards that are left.

**Idea.** GPipe holds all micro-batches, because its backwards begin only after the last forward. Here a rank does one
forward for each stage after it, so that these stages get work. From then on, every forward is followed by the backward
of the oldest micro-batch that is held.
**Source.** Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM",
§2.2.1; the paired exchanges are Megatron-LM's `send_forward_recv_backward` and `send_backward_recv_forward`.
**Sent.** The same messages as in GPipe. In the steady state both neighbors have a tensor for each other. If each first
sent its own, both would wait forever under NCCL; so the two tensors travel in one exchange.
**Cost.** GPipe's time, but rank r of p holds at most p − r micro-batches instead of all m.
The full form, `minitrain.pipeline_parallel.executor`, adds what the head of `gpipe.py` lists.
Also called PipeDream-flush, DAPPLE's schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, exchange, rank_and_size, receive, send


def step(
    stage: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    template: Tensor,
    group: Group = None,
) -> Tensor | None:
    """One forward and backward of a whole batch; arguments and result are those of `gpipe.step`."""
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1
    # A mean over unequal micro-batches' means would not be that of the batch.
    assert len({getattr(x, "shape", None) for x in inputs}) == 1, "one or more micro-batches, of equal size"
    held: deque[tuple[Tensor, Tensor]] = deque()  # input and output of each micro-batch, oldest first
    losses: list[Tensor] = []

    def forward(i: int, x: Tensor) -> Tensor:
        """Micro-batch i through this stage; returns what the next stage needs."""
        # x is a leaf, so that backward leaves in x.grad the gradient that the previous stage needs.
        y = stage(x if first else x.requires_grad_())
        if last:
            # One device would take the mean over the whole batch, so each micro-batch counts 1/m.
            y = loss(y, targets[i]) / len(inputs)
            losses.append(y.detach())
        assert last or (y.shape, y.dtype) == (template.shape, template.dtype), "not like the template"
        # y keeps the micro-batch's graph alive until its backward.
        held.append((x, y))
        return y.detach().contiguous()

    def backward(grad_y: Tensor | None) -> Tensor | None:
        """The oldest micro-batch back through this stage; returns what the previous stage needs."""
        x, y = held.popleft()
        # A first stage that is all frozen has no backward.
        if y.requires_grad:
            y.backward(grad_y)
        assert first or x.grad is not None, "a stage's output depends on its input"
        return None if first else x.grad

    def receive_from(neighbor: int, leaving: Tensor | None = None) -> Tensor:
        """A tensor from a neighboring stage, in exchange for `leaving` unless that is None."""
        arriving = torch.empty_like(template)
        if leaving is None:
            receive(arriving, neighbor, group).wait()
        else:
            # Both directions at once, because two sends would wait for each other.
            exchange(leaving, neighbor, arriving, neighbor, group).wait()
        return arriving

    # 1. Warm-up: one forward for each stage after this one, so that all of them get work.
    warmup = min(ranks - 1 - rank, len(inputs))
    for i in range(warmup):
        y = forward(i, inputs[i] if first else receive_from(rank - 1))
        # Activations go to the next stage, which has no gradient to return yet.
        send(y, rank + 1, group).wait()
    # 2. Steady state: one forward, one backward. At most warmup + 1 micro-batches are held.
    grad_x = None  # the gradient that the previous stage has yet to receive
    for i in range(warmup, len(inputs)):
        # The previous stage receives grad_x, and sends the activations of micro-batch i.
        y = forward(i, inputs[i] if first else receive_from(rank - 1, grad_x))
        # The next stage receives these activations, and sends the gradient of the oldest ones.
        grad_x = backward(None if last else receive_from(rank + 1, y))
    # 3. Cool-down: the backwards that are left. Nothing comes in exchange any more.
    for _ in range(warmup):
        if grad_x is not None:
            # The previous stage can now do its own backward.
            send(grad_x, rank - 1, group).wait()
        grad_x = backward(receive_from(rank + 1))
    if grad_x is not None:
        # The gradient of the last backward of the step.
        send(grad_x, rank - 1, group).wait()
    return sum(losses[1:], losses[0]) if last else None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
