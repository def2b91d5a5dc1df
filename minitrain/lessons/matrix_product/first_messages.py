"""The lesson of `minitrain.matrix_product.first_messages`: who gets what, and how long it takes."""

from __future__ import annotations

import torch

from minitrain.comm.control import gather_objects
from minitrain.comm.timeline import VirtualClock
from minitrain.comm.world import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.matrix_product.first_messages import relay, shift_at_once, shift_in_turn


def demo(world: World) -> list[Claim]:
    """Hands tensors from rank to rank in three orders; the table shows who got what, and the time."""
    rows, rank, ranks = Rows(), world.rank, world.size
    mine = torch.full((1000,), float(rank), device=world.device)  # each rank's tensor is full of its number
    rows.equal("relay: elements that are not rank 0's", relay(mine), torch.zeros_like(mine))
    for name, shift, steps in (("in turn", shift_in_turn, 2), ("at once", shift_at_once, 1)):
        # A message takes one virtual second. Its sender does not wait for the receiver.
        with VirtualClock(alpha=1.0) as clock:
            incoming = shift(mine)
        right = torch.full_like(mine, (rank - 1) % ranks)
        rows.equal("in turn, and at once: elements that are not the previous rank's", incoming, right, case=name)
        what, last = f"{name}: time until every rank has its tensor, a message taking t", max(gather_objects(clock.now))
        rows.time(what, f"{steps if steps > 1 else ''}t, alone 0", steps * (ranks > 1), last)
    return rows.claims()
