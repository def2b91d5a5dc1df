"""The lesson of `minitrain.matrix_product.first_messages`: what its demo claims, and how that is measured.

All of it is derived: the code shows which rank sends to which, and in which of the two orders a rank must wait.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.ledger import Ledger
from minitrain.comm.timeline import VirtualClock
from minitrain.comm.world import World
from minitrain.lessons.claims import Claim, fold
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
    formula = "S in a message, on the last rank 0"
    relayed = {
        "bytes": Claim("", formula, sends * size, ledger.sent, "B", "derived"),
        "messages": Claim("", formula, sends, ledger.messages, "messages", "derived"),
    }
    crossing, previous = size if ranks > 1 else 0, (rank - 1) % ranks
    moved, arrived, times = {}, {}, []
    for name, shift, steps in (("in turn", shift_in_turn, 2), ("at once", shift_at_once, 1)):
        # A message takes one virtual second. Its sender does not wait for the receiver.
        with Ledger() as ledger, VirtualClock(alpha=1.0) as clock:
            incoming = shift(mine)
        for way, count in (("sent", ledger.sent), ("received", ledger.received)):
            moved[f"{name}, {way}"] = Claim("", "S, alone 0", crossing, count, "B", "derived")
        arrived[name] = Claim("", "(r − 1) mod n", previous, whose(incoming), source="derived", how="compared")
        what = f"{name}: time until every rank has its tensor, a message taking t"
        formula = f"{steps if steps > 1 else ''}t, alone 0"
        last, expected = max(gather_objects(clock.now)), steps if ranks > 1 else 0
        times.append(Claim(what, formula, expected, last, "virtual s", "derived", how="virtual clock", key=True))
    return [
        fold("relay: bytes and messages sent", relayed, key=True),
        Claim("relay: whose tensor arrived", "rank 0's", 0, whose(first), source="derived", how="compared"),
        fold("in turn, and at once: bytes sent, and received", moved),
        fold("in turn, and at once: whose tensor arrived", arrived, key=True),
        *times,
        group_claim(mine),
    ]


def group_claim(mine: Tensor) -> Claim:
    """Even and odd ranks as two groups: each shifts within its own, and ranks are those within the group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    what, formula = "in a group of every other rank: whose tensor arrived", "r − 2, the first gets the last's"
    if ranks < 4:
        return Claim.needs_ranks(4, what, formula, "derived")
    # Every rank makes both groups, in the same order, and then uses the one that it is in.
    own = [new_group(list(range(first, ranks, 2))) for first in (0, 1)][rank % 2]
    assert isinstance(own, dist.ProcessGroup)
    members = list(range(rank % 2, ranks, 2))
    before = members[members.index(rank) - 1]
    ways = {"relay": (relay, members[0]), "in turn": (shift_in_turn, before), "at once": (shift_at_once, before)}
    return fold(
        what,
        {
            name: Claim("", formula, sender, whose(verb(mine, group=own)), source="derived", how="compared")
            for name, (verb, sender) in reversed(ways.items())
        },
    )
