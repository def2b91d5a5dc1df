"""The demo of `mappings`: the bytes that g and ḡ send, and that each is the other's transpose.

Backward has to be the transpose of forward: ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, where an inner product is a sum over the tensors of all
ranks, whether these are shards or partial sums. Whole numbers make both sides exact.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.costs.communication import ring_all_gather, ring_reduce_scatter
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.sequence_parallel.common import PAPER, RING
from minitrain.lessons.tensor_parallel.common import different
from minitrain.sequence_parallel import mappings as small
from minitrain.sequence_parallel.full import mappings as full


class Run(NamedTuple):
    """An operator forward and backward.

    Attributes:
        image: The result of forward.
        gradient: The result of backward.
        ledgers: The messages sent, by way.
        gap: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩ over all ranks.
    """

    image: Tensor
    gradient: Tensor
    ledgers: dict[str, Ledger]
    gap: float


def run(operator: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Run:
    """Apply an operator to x, and its backward to y."""
    x = x.clone().requires_grad_()
    ledgers = {"forward": Ledger(), "backward": Ledger()}
    with ledgers["forward"]:
        image = operator(x)
    with ledgers["backward"]:
        image.backward(y)
    assert x.grad is not None
    there, back = ((image.detach() * y).sum().item(), (x.detach() * x.grad).sum().item())
    return Run(image.detach(), x.grad, ledgers, sum(gather_objects(there)) - sum(gather_objects(back)))


def demo(world: World, batch: int = 2, shard: int = 3, width: int = 4) -> list[Claim]:
    """Applies both operators; the table shows that each sends half an all-reduce, and is the other's transpose.

    Args:
        batch: Sequences.
        shard: Tokens of each sequence on each rank.
        width: Elements of a token.
    """
    seq = shard * world.size
    size = (batch * seq * width, 4, world.size, world.rank)
    through_ring = Comm(collectives=ring)
    payloads, sent, gaps, unlike = {}, {}, {}, {}
    for name, of_small, of_full, lengths, verbs in (
        ("g", small.g, full.g, (shard, seq), ("all_gather", "reduce_scatter")),
        ("ḡ", small.g_bar, full.g_bar, (seq, shard), ("reduce_scatter", "all_gather")),
    ):
        generator = torch.Generator().manual_seed(world.rank)
        x, y = (
            torch.randint(-8, 9, (batch, length, width), generator=generator).to(world.device, torch.float32)
            for length in lengths
        )
        by_torch, by_ring = run(of_small, x, y), run(partial(of_full, comm=through_ring), x, y)
        for form, its in (("small form", by_torch), ("full form", by_ring)):
            gaps[f"{form}, {name}"] = Claim("", "0", 0, its.gap, "1", "derived", "compared")
        differ = different([by_torch.image, by_torch.gradient], [by_ring.image, by_ring.gradient])
        unlike[name] = Claim("", "0: whole numbers", 0, differ, "1", "derived", "compared")
        for way, verb in zip(("forward", "backward"), verbs, strict=True):
            ledger, case = by_torch.ledgers[way], f"{name} {way}"
            measured = ledger.payload(verb) if len(ledger.entries) == 1 else -1
            payloads[case] = Claim("", "S = bsh · w", 4 * batch * seq * width, measured, "B", PAPER)
            traffic = ring_all_gather(*size) if verb == "all_gather" else ring_reduce_scatter(*size)
            sent[case] = Claim("", "(t−1)/t · S", traffic.bytes, by_ring.ledgers[way].sent, "B", RING)
    return [
        fold("small form: g and ḡ, payload of one all-gather or reduce-scatter each way", payloads, key=True),
        fold("g and ḡ: bytes sent by this rank, each way", sent, key=True),
        fold("g and ḡ, small and full form: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩", gaps, key=True),
        fold("elements of outputs and gradients in which small and full form differ", unlike, key=True),
    ]
