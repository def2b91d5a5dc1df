"""All-to-all with parts of any length: every rank has a part for each rank, and gets one from each.

The expert parallelism of chapter 12 and the tables of chapter 19 send their rows with it. A part is some rows of a
tensor, in the order of ranks, and may be empty; each rank knows how many rows come from each other rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

from minitrain.comm.messages import exchange

Carrier = Callable[[Tensor, Tensor, Sequence[int], Sequence[int], dist.ProcessGroup | None], None]
"""The function that carries rows, `pairwise` or `native`: incoming, outgoing, rows from each rank, rows for each rank,
group."""


def pairwise(
    incoming: Shaped[Tensor, " received *row"],
    outgoing: Shaped[Tensor, " sent *row"],
    receives: Sequence[int],
    sends: Sequence[int],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Fills `incoming`, one message for each part that is not empty; the ledger sees each. Thakur et al. 2005."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    parts, places = outgoing.split(list(sends)), incoming.split(list(receives))
    places[rank].copy_(parts[rank])
    handles = []
    for step in range(1, ranks):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        # My part for `to` leaves, the part of `source` for me arrives. All are started before one is waited for.
        handles.append(exchange(parts[to], to, places[source], source, group))
    for handle in handles:
        handle.wait()


def native(
    incoming: Shaped[Tensor, " received *row"],
    outgoing: Shaped[Tensor, " sent *row"],
    receives: Sequence[int],
    sends: Sequence[int],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Fills `incoming` with torch's own collective; the ledger sees its payload, not its messages."""
    # One collective: every rank puts all its parts in and gets all parts for it out.
    dist.all_to_all_single(incoming, outgoing, list(receives), list(sends), group)
