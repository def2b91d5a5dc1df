"""What the loss over a divided vocabulary sends, and that its values are those of `F.cross_entropy`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.costs import vocabulary as costs
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.tensor_parallel import cross_entropy as small
from minitrain.tensor_parallel.full import cross_entropy as full
from minitrain.tensor_parallel.full.mappings import gather_from_parallel

SHOEYBI = "Shoeybi et al. 2019, §3"


def demo(world: World) -> list[Claim]:
    """Cuts logits over the ranks; the table shows what the loss sends, and that it is `F.cross_entropy`."""
    rows, n, rank, vocabulary, tokens = Rows(), world.size, world.rank, 61, 18  # 61 does not divide
    logits, targets = whole(world, tokens, vocabulary)
    mine = part(world, logits)
    with Ledger() as forward:
        loss = small.vocab_parallel_cross_entropy(mine, targets)
    with Ledger() as backward:
        loss.backward()
    carried = forward.payload("all_gather")
    rows.add("payload of the one all-gather, loss forward", "3wnT", costs.loss_payload(tokens, n, 8), carried)
    rows.add("communications, loss backward", "0", 0, len(backward.entries), "1")

    in_32, by_ring = part(world, logits.float()), Comm(collectives=ring)
    with Ledger() as numbers:
        full.vocab_parallel_cross_entropy(in_32, targets, by_ring)
    with Ledger() as gathering:
        gather_from_parallel(in_32.detach(), by_ring)
    predicted, what = costs.loss_traffic(tokens, n, rank), "loss forward: bytes sent by this rank, in n−1 messages"
    rows.add(what, "(n−1) · 12T", predicted.bytes, numbers.sent, case="bytes")
    rows.add(what, "n − 1", predicted.messages, numbers.messages, "messages", case="messages")
    gathered = costs.gathered_logits_traffic(tokens, vocabulary, n, rank).bytes
    rows.add("bytes that gathering all logits sends", "(n−1)/n · 4TV'", gathered, gathering.sent, "B", SHOEYBI)

    for case, form in (("small form", small), ("full form", full)):
        what = "loss and gradient, distance from F.cross_entropy, float64"
        ours, theirs = values(world, form.vocab_parallel_cross_entropy, logits, targets)
        rows.near(what, ours, theirs, 1e-12, "10⁻¹²", ROUNDING, case)
    return rows.claims()


def whole(world: World, tokens: int, vocabulary: int) -> tuple[Tensor, Tensor]:
    """Logits `[tokens, vocabulary]` between −1 and 1, and targets, the same on every rank.

    The first targets are each rank's first column and its last, where a comparison that is off by one shows.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.rand(tokens, vocabulary, generator=generator, dtype=torch.float64) - 1
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    firsts = torch.arange(0, vocabulary, costs.rows(vocabulary, world.size))
    edges = torch.cat([firsts[1:], firsts[1:] - 1, torch.tensor([vocabulary - 1, 0])])[:tokens]
    targets[: len(edges)] = edges
    return logits.to(world.device), targets.to(world.device)


def part(world: World, logits: Tensor, padding: float = -torch.inf) -> Tensor:
    """This rank's columns, −∞ in those of padding; a leaf that gets a gradient."""
    padded = F.pad(logits, (0, -logits.shape[-1] % world.size), value=padding)
    return padded.chunk(world.size, -1)[world.rank].clone().requires_grad_()


def values(world: World, form: Callable[..., Tensor], logits: Tensor, targets: Tensor) -> tuple[list[Tensor], ...]:
    """The loss and this rank's columns of its gradient: ours, and one device's, which has 0 for padding."""
    mine, alone = part(world, logits), logits.clone().requires_grad_()
    ours, theirs = form(mine, targets), F.cross_entropy(alone, targets)
    ours.backward()
    theirs.backward()
    assert mine.grad is not None and alone.grad is not None
    return [ours.detach(), mine.grad], [theirs.detach(), part(world, alone.grad, 0.0).detach()]
