"""The bytes that g and ḡ send, and that each is the other's transpose.

Backward has to be the transpose of forward: ⟨Ax, y⟩ = ⟨x, Aᵀy⟩, where an inner product is a sum over the tensors of all
ranks, whether these are shards or partial sums. Whole numbers make both sides exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.lessons.rows import Claim, Rows
from minitrain.sequence_parallel import mappings as small
from minitrain.sequence_parallel.full import mappings as full

PAPER = "Korthikanti et al. 2022, §4.2.2"


def demo(world: World) -> list[Claim]:
    """Applies both operators; the table shows that each sends half an all-reduce, and is the other's transpose."""
    batch, shard, width, seq = 2, 3, 4, 3 * world.size
    rows = Rows(PAPER)
    for name, of_small, of_full, lengths, verbs in (
        ("g", small.g, full.g, (shard, seq), ("all_gather", "reduce_scatter")),
        ("ḡ", small.g_bar, full.g_bar, (seq, shard), ("reduce_scatter", "all_gather")),
    ):
        generator = torch.Generator().manual_seed(world.rank)
        x, y = (torch.randint(-8, 9, (batch, each, width), generator=generator).float() for each in lengths)
        x, y, results = x.to(world.device), y.to(world.device), {}
        for form, operator in (("small form", of_small), ("full form", of_full)):
            leaf, ledgers = x.clone().requires_grad_(), (Ledger(), Ledger())
            with ledgers[0]:
                image = operator(leaf)
            with ledgers[1]:
                image.backward(y)
            assert leaf.grad is not None
            results[form] = [image.detach(), leaf.grad]
            gap = inner(image.detach(), y) - inner(x, leaf.grad)
            what = "g and ḡ, small and full form: ⟨Ax, y⟩ − ⟨x, Aᵀy⟩"
            rows.add(what, "0", 0, gap, "1", "derived", case=f"{form}, {name}", how="compared")
            for way, verb, ledger in zip(("forward", "backward"), verbs, ledgers, strict=True):
                what = "g and ḡ, small and full form: payload of one all-gather or reduce-scatter each way"
                measured = ledger.payload(verb) if len(ledger.entries) == 1 else -1
                rows.add(what, "S = bsh · w", 4 * batch * seq * width, measured, case=f"{form}, {name} {way}")
        what = "elements of outputs and gradients in which small and full form differ"
        rows.equal(what, results["small form"], results["full form"], "0: whole numbers", case=name)
    return rows.claims()


def inner(one: Tensor, other: Tensor) -> float:
    return sum(gather_objects((one * other).sum().item()))
