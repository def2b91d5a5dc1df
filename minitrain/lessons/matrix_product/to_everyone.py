"""The lesson of `minitrain.matrix_product.to_everyone`: what its demo claims, and how that is measured."""

from __future__ import annotations

import math

import torch

from minitrain.comm.ledger import Ledger
from minitrain.comm.world import World
from minitrain.costs import matrix_product as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.matrix_product import to_everyone
from minitrain.matrix_product.full import to_everyone as full


def demo(world: World, elements: int = 1001) -> list[Claim]:
    """Adds one tensor from every rank, each rank sending its own to all others; the table shows bytes and the sum.

    Args:
        elements: Number of float32 values in a rank's tensor.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")
    rank, ranks = world.rank, world.size
    source, whole_of = "Thakur et al. 2005, §4", "(n−1)·S in n−1 messages"
    part_of = "(n−1)·S_r in n−1 messages, S_r this rank's part"
    sums, parts, wrong = {}, {}, {}
    for form, module in (("small form", to_everyone), ("full form", full)):
        for dtype in (torch.float32, torch.float64):
            case = f"{form}, {dtype}"
            positions = torch.arange(elements, device=world.device, dtype=dtype) % 100
            mine = positions * (rank + 1)  # whole numbers, so that the sum is exact in any order
            with Ledger() as ledger:
                summed = module.total(mine)
            item = (
                {} if dtype == torch.float32 else {"item": dtype.itemsize}
            )  # float32 is what theory takes if not told
            predicted = costs.to_everyone_bytes(elements, ranks, **item)
            sums[case] = Claim("", whole_of, predicted, ledger.sent, "B", source)
            sums[f"{case}: messages"] = Claim("", whole_of, ranks - 1, ledger.messages, "messages", source)
            expected = positions * sum(range(1, ranks + 1))
            wrong[f"sum, {case}"] = Claim("", "0", 0, (summed != expected).sum().item(), how="compared")
        cuts: tuple[tuple[tuple[int, ...], int], ...] = (((elements,), 0), ((3, 10, 2), 1))
        for shape, dim in cuts:
            case = f"{form}, {shape} cut along dim {dim}"
            whole = torch.arange(math.prod(shape), device=world.device, dtype=torch.float32).view(shape)
            part = whole.tensor_split(ranks, dim)[rank].contiguous()
            with Ledger() as ledger:
                collected = module.collect(part, shape[dim], dim) if dim else module.collect(part, shape[dim])
            share = costs.share(shape[dim], ranks, rank) * math.prod(shape) // shape[dim]
            predicted, messages = costs.to_everyone_bytes(share, ranks), (ranks - 1) * (share > 0)
            parts[case] = Claim("", part_of, predicted, ledger.sent, "B", source)
            parts[f"{case}: messages"] = Claim("", part_of, messages, ledger.messages, "messages", source)
            wrong[f"parts, {case}"] = Claim("", "0", 0, (collected != whole).sum().item(), how="compared")
    return [
        fold("sum: bytes sent, and messages", sums, key=True),
        fold("parts: bytes sent, and messages", parts, key=True),
        fold("elements of the sum that are wrong, and elements of the parts that are out of place", wrong, key=True),
    ]
