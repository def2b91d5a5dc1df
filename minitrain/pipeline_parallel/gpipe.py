"""GPipe: each rank holds one stage of the model; all forwards of a step come first, and then all backwards.

**Idea.** Divide a batch into m micro-batches. While one stage works on a micro-batch, the stage before it already works
on the next one. So all stages work at the same time, except while the pipeline fills and empties (the bubble).
**Source.** Huang et al. 2019, "GPipe", §2.2 and §2.3, without the recomputation that the paper adds (chapter 05).
**Sent.** For each micro-batch, its activations go to the next stage, and their gradient, which is as large, comes back.
**Cost.** With p ranks, the bubble is (p−1)/(m+p−1) of the time. A rank holds the graphs of all m micro-batches.
The full form, `minitrain.pipeline_parallel.executor`, adds every other schedule, several tensors of any shape between
stages, several stages per rank, tied weights, data parallelism within a stage, and checks.
Also called fill–drain, all-forward-all-backward (AFAB), F-then-B.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, rank_and_size, receive, send


def step(
    stage: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    template: Tensor,
    group: Group = None,
) -> Tensor | None:
    """One forward and backward of a whole batch; returns its mean loss on the last rank.

    Each parameter's gradient is added to its `.grad`, as `backward` always does.

    Args:
        stage: This rank's layers; they take one tensor and return one.
        inputs: The m micro-batches, of which the first rank uses the values, and the others the number m.
        targets: One per micro-batch, for `loss`; only the last rank uses them.
        loss: `loss(output, target)`, a mean over the micro-batch.
        template: Any tensor with the shape and dtype of the activations between stages, such as [batch, seq, hidden].
        group: The ranks of the pipeline, in the order of the stages.
    """
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1
    # A mean over unequal micro-batches' means would not be that of the batch.
    assert len({getattr(x, "shape", None) for x in inputs}) == 1, "one or more micro-batches, of equal size"
    held: list[tuple[Tensor, Tensor]] = []  # input and output of each micro-batch
    losses: list[Tensor] = []
    # 1. All forwards.
    for i in range(len(inputs)):
        if first:
            x = inputs[i]
        else:
            x = torch.empty_like(template)
            # The activations come from the previous stage.
            receive(x, rank - 1, group).wait()
            # A leaf, so that backward leaves in x.grad the gradient that the previous stage needs.
            x.requires_grad_()
        y = stage(x)
        if last:
            # One device would take the mean over the whole batch, so each micro-batch counts 1/m.
            y = loss(y, targets[i]) / len(inputs)
            losses.append(y.detach())
        else:
            assert (y.shape, y.dtype) == (template.shape, template.dtype), (
                "the next stage expects the template's shape and dtype"
            )
            # The activations go to the next stage.
            send(y.detach().contiguous(), rank + 1, group).wait()
        # y keeps the micro-batch's graph alive until its backward.
        held.append((x, y))
    # 2. All backwards.
    for x, y in held:
        grad_y = None  # on the last rank y is the loss, whose backward starts by itself
        if not last:
            grad_y = torch.empty_like(template)
            # The gradient of y comes from the next stage, whose input was y.
            receive(grad_y, rank + 1, group).wait()
        # A first stage that is all frozen has no backward.
        if y.requires_grad:
            y.backward(grad_y)
        if not first:
            assert x.grad is not None, "a stage's output depends on its input"
            # The gradient of x goes to the previous stage, whose output was x.
            send(x.grad, rank - 1, group).wait()
    return sum(losses[1:], losses[0]) if last else None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
