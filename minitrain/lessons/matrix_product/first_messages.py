"""The lesson of `minitrain.matrix_product.first_messages`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.ledger import Ledger
from minitrain.comm.timeline import VirtualClock
from minitrain.comm.world import World
from minitrain.lessons.claims import Claim
from minitrain.matrix_product.first_messages import relay, shift_at_once, shift_in_turn, whose


def demo(world: World, elements: int = 1000) -> list[Claim]:
    """Hands tensors from rank to rank in three orders; the table shows messages, bytes, who got what, and time.

    Args:
        elements: Number of float32 values in a rank's tensor.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")
    rank, ranks, size = world.rank, world.size, 4 * elements
    mine = torch.full((elements,), float(rank), device=world.device)  # each rank's tensor is full of its number

    with Ledger() as ledger:
        first = relay(mine)
    sends = 1 if rank < ranks - 1 else 0
    source = "MPI standard, §3.5"
    claims = [
        Claim("relay: messages sent", "1, on the last rank 0", sends, ledger.messages, "messages", source),
        Claim("relay: bytes sent", "S, on the last rank 0", sends * size, ledger.sent, "B", source, key=True),
        Claim("relay: whose tensor arrived", "rank 0's", 0, whose(first), source=source, how="compared"),
    ]
    for name, shift, steps in (("in turn", shift_in_turn, 2), ("at once", shift_at_once, 1)):
        # A message takes one virtual second. Its sender does not wait until the receiver is there.
        with Ledger() as ledger, VirtualClock(alpha=1.0) as clock:
            incoming = shift(mine)
        last = max(gather_objects(clock.now))
        time = Claim(
            f"{name}: time until every rank has its tensor, a message taking t",
            f"{steps if steps > 1 else ''}t, alone 0",
            steps if ranks > 1 else 0,
            last,
            "virtual s",
            how="virtual clock",
            key=True,
        )
        crossing = size if ranks > 1 else 0
        previous = (rank - 1) % ranks
        claims += [
            Claim(f"{name}: bytes sent", "S, alone 0", crossing, ledger.sent, "B", source),
            Claim(f"{name}: bytes received", "S, alone 0", crossing, ledger.received, "B", source),
            Claim(
                f"{name}: whose tensor arrived",
                "(r − 1) mod n",
                previous,
                whose(incoming),
                source=source,
                how="compared",
                key=True,
            ),
            time,
        ]
    return [*claims, *claims_of_groups(mine, elements)]


def claims_of_groups(mine: Tensor, elements: int) -> list[Claim]:
    """Even and odd ranks as two groups: each shifts within its own, and ranks are those within the group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    what, formula = "in a group of every other rank: whose tensor arrived", "r − 2, the first gets the last's"
    if ranks < 4:
        return [Claim.needs_ranks(4, what, formula)]
    # Every rank makes both groups, in the same order, and then uses the one that it is in.
    own = [new_group(list(range(first, ranks, 2))) for first in (0, 1)][rank % 2]
    assert isinstance(own, dist.ProcessGroup)
    members = list(range(rank % 2, ranks, 2))
    incoming = shift_at_once(mine, group=own)
    return [Claim(what, formula, members[members.index(rank) - 1], whose(incoming), how="compared")]
