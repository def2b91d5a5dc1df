"""Three ways in which communication meets computing: hidden behind what comes later, behind what came before, or not.

**Idea.** A device can send and compute at the same time, if neither waits for the other. So ask of each tensor that
travels: when is it ready, and who needs it next? Gradients of weights are ready early and needed only when backward is
over. Weights that are sharded over ranks (ZeRO-3) are always ready, and needed in a known order. The partial sums of
layers that are split over the ranks (tensor parallelism) are ready last and needed at once.

**Source.** Austin et al. 2025, "How to scale your model", on training.
**Sent.** n ranks, T tokens of width D: a layer's gradient, 2(n−1)/n · wD²; its weight, (n−1)/n · wD²; or its output,
2(n−1)/n · wTD bytes.
**Cost.** The longer of both times and one layer's share of the shorter one; or, where nothing can hide, their sum.
What cannot hide is also called exposed or non-overlapped communication, or communication bubble.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from minitrain.comm.messages import all_gather, all_reduce

Start = Callable[[Tensor], Any]  # starts a communication: a verb of messages.py, which returns a Handle


def backward(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], gradient: Tensor, reduce: Start = all_reduce, overlap=True
) -> list[Tensor]:
    """Data parallelism: gradients of a chain y = xW, summed over the ranks, each of which has other tokens."""
    started = []
    for x, weight in zip(reversed(inputs), reversed(weights), strict=True):
        own = x.T @ gradient  # (D, D), of this rank's tokens
        gradient = gradient @ weight.T  # (T, D), for the layer below
        # The sum of all ranks' `own` is needed by the optimizer, and by no line of this loop.
        started.append(reduce(own))
        if not overlap:
            started[-1].wait()
    return [each.wait() for each in reversed(started)]


def gathered(x: Tensor, shards: Sequence[Tensor], gather: Start = all_gather, overlap=True) -> Tensor:
    """Sharded weights: the chain's forward where each rank keeps 1/n of the rows of every weight."""
    # The first layer's weight: nothing can be computed while it comes.
    coming = gather(shards[0])
    for following in (*shards[1:], None):
        weight = coming.wait()  # (D, D)
        if overlap and following is not None:
            # It depends on no activation, so it may set off before this layer begins.
            coming = gather(following)
        x = x @ weight  # (T, D)
        if not overlap and following is not None:
            coming = gather(following)
    return x


def split(x: Tensor, columns: Sequence[Tensor], rows: Sequence[Tensor], reduce: Start = all_reduce) -> Tensor:
    """Split layers: y = xAB, of which each rank has columns of A and the same rows of B."""
    for a, b in zip(columns, rows, strict=True):
        partial = x @ a @ b  # (T, D), a partial sum of the output
        # The next layer's first product needs the whole sum: there is nothing to do meanwhile.
        x = reduce(partial).wait()
    return x


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
