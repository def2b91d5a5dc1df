"""GPipe: each rank holds one stage of the model; all forwards of a step, and then all backwards.

**Idea.** Cut a batch into m micro-batches. While one stage works on a micro-batch, the stage before it already has the
next one, so that all stages work at once, except while the pipeline fills and empties.
**Source.** Huang et al. 2019, "GPipe", §2.2 and §2.3.
**Sent.** Of each micro-batch its activations to the next stage, and later their gradient back, which is as large.
**Cost.** With n ranks a step takes (n−1)/m longer than its work. A rank holds the graphs of all m micro-batches.
The full form, `minitrain.pipeline_parallel.executor`, adds every other schedule, several tensors of any shape between
stages, several stages per rank, tied weights, data parallelism within a stage, and checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, place, receive, send


def step(
    stage: nn.Module,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    template: Tensor,
    group: Group = None,
) -> Tensor | None:
    """Add this stage's gradients of the mean loss; returns that loss on the last rank.

    Args:
        stage: This rank's layers; they take one tensor and return one.
        inputs: The micro-batches, as many on every rank; the first rank uses them.
        targets: What `loss` compares with; the last rank uses them.
        loss: The mean over a micro-batch.
        template: Any tensor of the shape and dtype that every stage hands to the next.
        group: The ranks of the pipeline, in the order of the stages.
    """
    rank, ranks = place(group)
    first, last = rank == 0, rank == ranks - 1
    held: list[tuple[Tensor, Tensor]] = []  # input and output of each micro-batch
    mean = template.new_zeros(())
    for number in range(len(inputs)):
        if first:
            x = inputs[number]
        else:
            x = torch.empty_like(template)
            # The activations come from the stage before ...
            receive(x, rank - 1, group).wait()
            x.requires_grad_()  # backward leaves in x.grad what that stage waits for
        y = stage(x)
        if last:
            # One device takes the mean over all samples: each micro-batch counts 1/m.
            y = loss(y, targets[number]) / len(inputs)
            mean += y.detach()
        else:
            assert y.shape == template.shape, "the next stage expects the template's shape"
            # ... and the outputs go to the next one.
            send(y.detach().contiguous(), rank + 1, group).wait()
        held.append((x, y))  # y holds the graph of the micro-batch until its backward
    for x, y in held:
        gradient = None  # a loss needs none
        if not last:
            gradient = torch.empty_like(template)
            # Backward begins with the gradient of y, from the stage that continued with y ...
            receive(gradient, rank + 1, group).wait()
        y.backward(gradient)
        if not first:
            assert x.grad is not None, "a stage's output depends on its input"
            # ... and the gradient of x goes to the stage that made x.
            send(x.grad, rank - 1, group).wait()
    return mean if last else None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
