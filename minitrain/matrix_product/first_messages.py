"""The first messages: one rank sends a tensor, another receives it, and nobody waits for ever.

**Idea.** A rank is a process with a number. It sees no other rank's memory: what it needs from there must be sent, and
whoever needs it must ask for it. A message happens when both are there, one in `send` and one in `receive`. So if every
rank first waits until its own tensor has been taken, no rank ever takes one. That is a deadlock:

    send(tensor, to=next_rank).wait()            # every rank waits here, for ever
    receive(incoming, source=previous_rank).wait()

Two orders work. In turn: some ranks send first, the others receive first. At once: every rank starts both, and waits
afterwards.

**Source.** Hoare 1978, "Communicating sequential processes", §2.3, for a message that takes place when both are ready;
MPI standard, §3.5, for the deadlock and its cures.

**What each rank holds.** One tensor of S bytes, and room for one more.

**What is sent, when and why.** `relay`: one message of S bytes per rank, the last rank none, one after the other.
`shift_in_turn` and `shift_at_once`: one message of S bytes per rank.

**Cost.** In time of a message: `shift_in_turn` 2, since each rank first does one and then the other; `shift_at_once` 1.

**Also called.** `shift_at_once` is MPI's `MPI_Sendrecv`, and torch's `batch_isend_irecv`; a shift by one rank is one
step of a ring (chapter 01).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.runtime.claims import Claim
from minitrain.runtime.control import gather_objects
from minitrain.runtime.demo import run
from minitrain.runtime.groups import new_group
from minitrain.runtime.ledger import Ledger
from minitrain.runtime.messages import exchange, receive, send
from minitrain.runtime.timeline import VirtualClock
from minitrain.runtime.world import World


def relay(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Hand rank 0's tensor from rank to rank, each to the next one.

    Args:
        tensor: Rank 0's is handed on; the others' says shape and dtype only.
        group: The ranks that take part; None means everyone.

    Returns:
        Rank 0's tensor, on every rank.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    carried = tensor.clone() if rank == 0 else torch.empty_like(tensor)
    if rank > 0:
        receive(carried, source=rank - 1, group=group).wait()  # there is nothing to hand on before this
    if rank < ranks - 1:
        send(carried, to=rank + 1, group=group).wait()  # the last rank has nobody to hand it to
    return carried


def shift_in_turn(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Every rank gives its tensor to the next rank, the last to the first; even ranks send first, odd ranks receive.

    Next to every rank that sends there is one that receives, and so somebody always gets on. That holds for an odd
    number of ranks, too: there rank n − 1 and rank 0 are both even, and the first waits until rank 1 has freed rank 0,
    which takes a third step.

    Args:
        tensor: What this rank gives away; contiguous, of one shape and dtype on all ranks.
        group: The ranks that take part; None means everyone.

    Returns:
        The previous rank's tensor.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return tensor.clone()
    next_rank, previous_rank = (rank + 1) % ranks, (rank - 1) % ranks
    incoming = torch.empty_like(tensor)
    if rank % 2 == 0:
        send(tensor, to=next_rank, group=group).wait()  # an odd rank is already in `receive`
        receive(incoming, source=previous_rank, group=group).wait()
    else:
        receive(incoming, source=previous_rank, group=group).wait()  # an even rank is already in `send`
        send(tensor, to=next_rank, group=group).wait()
    return incoming


def shift_at_once(tensor: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """As `shift_in_turn`, but every rank starts both directions, then waits: one step, and no order to get wrong.

    Args:
        tensor: What this rank gives away; contiguous, of one shape and dtype on all ranks.
        group: The ranks that take part; None means everyone.

    Returns:
        The previous rank's tensor.
    """
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if ranks == 1:
        return tensor.clone()
    incoming = torch.empty_like(tensor)
    # One message to the next rank and one from the previous, neither waiting for the other.
    exchange(tensor, (rank + 1) % ranks, incoming, (rank - 1) % ranks, group=group).wait()
    return incoming


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
        Claim("relay: bytes sent", "S, on the last rank 0", sends * size, ledger.sent, "B", source),
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


def whose(tensor: Tensor) -> float:
    """The rank whose tensor this is in the demo, not a number if it is a mixture."""
    first = tensor[0].item()
    return first if bool((tensor == first).all()) else float("nan")


if __name__ == "__main__":
    run(demo)
