"""All-to-all of uneven parts: every rank has some rows for every other rank.

**Idea.** Rank r cuts its rows into n parts, and part s goes to rank s. A router decides how long the parts are, so they
differ in length and may be empty. Both sides must know the lengths, because a receiver needs a buffer before the rows
come; therefore a layer exchanges counts first. In backward, gradients travel the opposite way: same call, both lists of
lengths exchanged.

**Source.** Lepikhin et al. 2020, "GShard", §3.3.1; Thakur et al. 2005, "Optimization of collective communication
operations in MPICH", for the pairwise exchange. Also called `MPI_Alltoallv`, or personalized exchange.
**Sent.** With `pairwise`, in step s = 1 … n−1 each rank sends to the s-th rank after it and receives from the s-th
before it; with `native`, the library decides.
**Cost.** The bytes of all rows that do not stay, in at most n−1 messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.collectives.all_to_all import Carrier, native


def all_to_all(
    x: Shaped[Tensor, " sent *row"],
    sends: Sequence[int],
    receives: Sequence[int],
    group: dist.ProcessGroup | None = None,
    carrier: Carrier = native,
) -> Shaped[Tensor, " received *row"]:
    """Send the first `sends[0]` rows of x to rank 0, the next `sends[1]` to rank 1, and so on.

    It is differentiable. Backward is an all-to-all as well, so either all ranks must go backward through it or none,
    even a rank that has sent no rows.

    Args:
        x: The rows, those for rank 0 first.
        sends: The number of rows for each rank.
        receives: The number of rows from each rank: from rank s, what rank s has in `sends` for this rank.
        group: The ranks that take part; None means everyone.
        carrier: `native` is torch's collective; `pairwise` sends one message per part, each of which the ledger sees.

    Returns:
        The rows that arrived, those of rank 0 first, each rank's rows in the order in which it had them.

    Raises:
        ValueError: A list does not have a length for each rank, or `sends` does not sum to the rows of x.
    """
    ranks = dist.get_world_size(group)
    # Before anything is sent, because a wrong length would leave a rank waiting forever.
    for name, lengths in (("sends", sends), ("receives", receives)):
        if len(lengths) != ranks or min(lengths) < 0:
            raise ValueError(f"{name}={list(lengths)} needs a number of rows for each of {ranks} ranks, 0 for none")
    if sum(sends) != len(x):
        raise ValueError(f"sends={list(sends)} sums to {sum(sends)}, but x has {len(x)} rows; give each row a rank")
    return _AllToAll.apply(x, sends, receives, group, carrier)


class _AllToAll(torch.autograd.Function):
    """The rows travel; in backward, their gradients travel back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sends: Sequence[int],
        receives: Sequence[int],
        group: dist.ProcessGroup | None,
        carrier: Carrier,
    ) -> Tensor:
        # For backward, the two lists change places: what arrived now leaves.
        ctx.backward_arguments = receives, sends, group, carrier
        incoming = x.new_empty(sum(receives), *x.shape[1:])
        # Each part goes to its rank; the part for this rank itself is only copied.
        carrier(incoming, x.contiguous(), receives, sends, group)
        return incoming

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Through `apply`, so that this backward can be differentiated in turn: each row's
        # gradient returns to the rank from which the row came.
        return _AllToAll.apply(gradients[0], *ctx.backward_arguments), None, None, None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
