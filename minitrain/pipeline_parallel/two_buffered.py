"""PipeDream-2BW: gradients of k micro-batches make one new version of the weights, and two versions suffice.

**Idea.** With an update per micro-batch, p micro-batches in flight have used up to p versions. Accumulate the gradients
of k ≥ p micro-batches, a batch, and update once. Then the micro-batches in flight belong to two batches at most.
Batch t uses version t − 1 on every stage, while version t waits in the second buffer for batch t + 1.
**Source.** Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", §3.1; k is its m. A version is
numbered by the updates that it has seen; the paper numbers it by the last micro-batch of its batch.
**Sent.** The same messages as in 1F1B.
**Cost.** Every stage keeps 2 versions, and every gradient is one update old: w(t+1) = w(t) − ν · ∇f(w(t−1)), with
w(0) in place of w(−1).
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
    k: int,
    group: Group = None,
) -> list[Tensor]:
    """SGD with one update per k micro-batches; other arguments and the result are those of `pipedream.train`."""
    rank, ranks = rank_and_size(group)
    assert k >= ranks, f"k={k} micro-batches per update are fewer than the {ranks} stages; use k={ranks} or more"
    assert len(inputs) % k == 0, f"inputs has {len(inputs)} micro-batches; use a multiple of k={k}"
    # A mean over unequal micro-batches' means would not be that of the batch.
    assert len({getattr(x, "shape", None) for x in inputs}) == 1, "one or more micro-batches, of equal size"
    first, last = rank == 0, rank == ranks - 1
    assert all(w.requires_grad for w in versions[max(versions)].values()), "every weight is trained"
    held: deque[tuple[int, Tensor, Tensor]] = deque()  # version, input and output of each micro-batch, oldest first
    losses: list[Tensor] = []
    total: list[Tensor] = []  # the gradients of a batch, added up

    def forward(i: int, x: Tensor | None) -> Tensor:
        # Batch t = i // k uses version t − 1 everywhere, also where version t is ready.
        version = max(0, i // k - 1)
        x = inputs[i] if x is None else x.requires_grad_()
        y = functional_call(stage, versions[version], x)
        if last:
            y = loss(y, targets[i])
            losses.append(y.detach())
            # A batch's loss is the mean over its micro-batches, so each counts 1/k.
            y = y / k
        held.append((version, x, y))
        return y.detach().contiguous()

    def backward(i: int, grad_y: Tensor | None) -> Tensor | None:
        version, x, y = held.popleft()
        leaves = [*versions[version].values(), *([] if first else [x])]
        grads = torch.autograd.grad(y, leaves, grad_y)
        # The sum over the batch so far; the gradient of x, which comes last on all but the first rank, is left out.
        own = grads[: len(versions[version])]
        total[:] = [a + b for a, b in zip(total, own, strict=True)] if total else own
        t = i // k
        if i % k == k - 1:
            # The batch is complete: version t + 1 replaces version t − 1, which no micro-batch will use again.
            versions[t + 1] = updated(versions[t], total, lr)
            versions.pop(t - 1, None)
            total.clear()
        return None if first else grads[-1]

    stream(len(inputs), forward, backward, template, group)
    # The version that a further batch would have used.
    while len(versions) > 1:
        del versions[min(versions)]
    return losses


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
