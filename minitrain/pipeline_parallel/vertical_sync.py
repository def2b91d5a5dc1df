"""Vertical sync: all stages use the version of the weights with which a micro-batch entered the pipeline.

**Idea.** With weight stashing alone, each stage takes its own latest weights, so that a micro-batch meets a newer
version at every stage. Here the first stage's latest version is noted when the micro-batch enters. The number travels
with the activations, and every stage uses its own weights of that version, forward and backward.
**Source.** Narayanan et al. 2019, "PipeDream", §3.3, "Vertical Sync".
**Sent.** The messages of 1F1B, each with one element more: the number of the version.
**Cost.** Every stage keeps p versions of its weights; stashing alone keeps p − s on stage s, counted from 0. Every
gradient is p − 1 updates old: w(t+1) = w(t) − ν · ∇f(w₀(t−p+1), w₁(t−p+1), …, wₚ₋₁(t−p+1)).
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
    """SGD with one update per micro-batch; arguments and result are those of `pipedream.train`."""
    rank, ranks = rank_and_size(group)
    first, last = rank == 0, rank == ranks - 1
    assert all(w.requires_grad for w in versions[max(versions)].values()), "every weight is trained"
    held: deque[tuple[int, Tensor, Tensor]] = deque()  # version, input and output of each micro-batch, oldest first
    losses: list[Tensor] = []

    def forward(i: int, message: Tensor | None) -> Tensor:
        # The first stage takes its latest version; the others take the one that arrives with the activations.
        version = max(versions) if message is None else next(v for v in versions if v % 256 == message[-1])
        x = inputs[i] if message is None else message[:-1].view_as(template).requires_grad_()
        y = functional_call(stage, versions[version], x)
        assert last or y.shape == template.shape, "a stage returns the template's shape"
        if last:
            y = loss(y, targets[i])
            losses.append(y.detach())
        held.append((version, x, y))
        return numbered(y.detach(), version)

    def backward(i: int, message: Tensor | None) -> Tensor | None:
        version, x, y = held.popleft()
        belongs = message is None or message[-1] == version % 256
        assert belongs, "a gradient belongs to the oldest micro-batch in flight"
        leaves = [*versions[version].values(), *([] if first else [x])]
        grads = torch.autograd.grad(y, leaves, None if message is None else message[:-1].view_as(template))
        # As in PipeDream, the gradient of old weights updates the latest ones.
        versions[i + 1] = updated(versions[i], grads[: len(versions[i])], lr)
        # At most p micro-batches are between the first stage and here, so no later one entered with this version.
        versions.pop(i + 1 - ranks, None)
        return None if first else numbered(grads[-1], version)

    stream(len(inputs), forward, backward, numbered(template, 0), group)
    # Versions for micro-batches that would have followed.
    while len(versions) > 1:
        del versions[min(versions)]
    return losses


def numbered(tensor: Tensor, version: int) -> Tensor:
    """A flat message: the tensor, then the version's number.

    bfloat16 holds whole numbers up to 256 exactly. So the remainder by 256 is sent, which tells apart the few versions
    that a stage keeps.
    """
    return torch.cat([tensor.reshape(-1), tensor.new_tensor([version % 256])])


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
