"""A pipeline without a flush that keeps one version of its weights: the mistake that weight stashing mends.

**Idea.** Each backward is followed by an update of the stage's only weights. The forward of a micro-batch has then used
older weights than its backward. Autograd refuses to go back through weights that were changed in place; writing to
`.data`, as old optimizers did, hides the change from it.
**Source.** The baseline of Narayanan et al. 2019, "PipeDream", §3.3.
**Sent.** The same messages as in 1F1B.
**Cost.** One version of the weights. The backward of a layer mixes activations of old weights with new weights, so that
the result is the gradient of no function.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from minitrain.comm.messages import Group, rank_and_size
from minitrain.pipeline_parallel.without_flush import Loss, Weights, stream


def train(
    stage: nn.Module,
    versions: dict[int, Weights],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss: Loss,
    template: Tensor,
    lr: float,
    group: Group = None,
) -> list[Tensor]:
    """SGD with one update per micro-batch; arguments and result are those of `pipedream.train`."""
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1
    assert all(w.requires_grad for w in versions[max(versions)].values()), "every weight is trained"
    held: deque[tuple[Tensor, Tensor]] = deque()  # input and output of each micro-batch, oldest first
    losses: list[Tensor] = []

    def forward(i: int, x: Tensor | None) -> Tensor:
        # x is a leaf, because the previous stage needs its gradient.
        x = inputs[i] if x is None else x.requires_grad_()
        y = functional_call(stage, versions[max(versions)], x)
        if last:
            y = loss(y, targets[i])
            losses.append(y.detach())
        held.append((x, y))
        return y.detach().contiguous()

    def backward(i: int, grad_y: Tensor | None) -> Tensor | None:
        x, y = held.popleft()
        # The mistake: these weights have been updated since the forward of micro-batch i.
        weights = versions.pop(i)
        grads = torch.autograd.grad(y, [*weights.values(), *([] if first else [x])], grad_y)
        for w, gradient in zip(weights.values(), grads, strict=False):
            # In place, behind autograd's back. Micro-batches in flight see the change.
            w.data -= lr * gradient
        # The same tensors have become the next version.
        versions[i + 1] = weights
        return None if first else grads[-1]

    stream(len(inputs), forward, backward, template, group)
    return losses


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
