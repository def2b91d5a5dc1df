"""PipeDream: a pipeline without a flush, an update after every backward, and *weight stashing*.

**Idea.** Between the forward and the backward of a micro-batch, other micro-batches update the weights. So each stage
keeps (stashes) the weights that the forward used, until the backward has used them as well. Then the gradient is
correct, although it is applied to newer weights.
**Source.** Narayanan et al. 2019, "PipeDream", §3.3. A version is numbered by the updates that it has seen, from 0; the
paper numbers it by the micro-batch that made it, from 1. "PipeDream-flush" of later papers is `one_f_one_b.py`.
**Sent.** The same messages as in 1F1B.
**Cost.** Stage s of p, counted from 0, keeps p − s versions of its weights, and its gradients are p − 1 − s updates
old: w(t+1) = w(t) − ν · ∇f(w₀(t−p+1), w₁(t−p+2), …, wₚ₋₁(t)).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from minitrain.comm.messages import Group, rank_and_size
from minitrain.pipeline_parallel.without_flush import Loss, Weights, stream, updated


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
    """SGD with one update per micro-batch; returns the loss of each micro-batch on the last rank.

    Args:
        stage: This rank's layers, which take one tensor and return one; their weights come from `versions`.
        versions: {0: the first weights} of this stage. It holds whatever versions are needed, at the end only the last.
        inputs: The N micro-batches, of which the first rank uses the values, and the others the number.
        targets: One per micro-batch, for `loss`; only the last rank uses them.
        loss: `loss(output, target)`, a mean over the micro-batch.
        template: Any tensor with the shape and dtype of the activations between stages, such as [batch, seq, hidden].
        lr: The learning rate ν.
        group: The ranks of the pipeline, in the order of the stages.
    """
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1
    assert all(w.requires_grad for w in versions[max(versions)].values()), "every weight is trained"
    held: deque[tuple[int, Tensor, Tensor]] = deque()  # version, input and output of each micro-batch, oldest first
    losses: list[Tensor] = []

    def forward(i: int, x: Tensor | None) -> Tensor:
        # Each forward uses the latest weights of this stage.
        version = max(versions)
        x = inputs[i] if x is None else x.requires_grad_()
        y = functional_call(stage, versions[version], x)
        if last:
            y = loss(y, targets[i])
            losses.append(y.detach())
        held.append((version, x, y))
        return y.detach().contiguous()

    def backward(i: int, grad_y: Tensor | None) -> Tensor | None:
        version, x, y = held.popleft()
        # Weight stashing: the backward uses the weights of the same micro-batch's forward.
        leaves = [*versions[version].values(), *([] if first else [x])]
        grads = torch.autograd.grad(y, leaves, grad_y)
        # The gradient updates the latest weights, which have seen the i micro-batches before this one.
        versions[i + 1] = updated(versions[i], grads[: len(versions[i])], lr)
        # Kept are the versions that micro-batches in flight have used, and the latest.
        for unused in versions.keys() - {each[0] for each in held} - {i + 1}:
            del versions[unused]
        return None if first else grads[-1]

    stream(len(inputs), forward, backward, template, group)
    return losses


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
