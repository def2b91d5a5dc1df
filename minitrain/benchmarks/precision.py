"""The ring all-reduce in 8 bits against the ring in bfloat16, both with the bytes that a rank sends.

On a fast network the 8-bit ring is the slower one, because rounding and restoring cost more than the bytes it saves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.collectives import ring
from minitrain.comm import Ledger
from minitrain.comm.world import World
from minitrain.precision import quantized_gradients

ELEMENTS = (1 << 14, 1 << 18, 1 << 22)


def measure(world: World, elements: tuple[int, ...] = ELEMENTS, repeats: int = 21) -> list[Comparison]:
    """Compare all-reduces of gradients of each size."""
    rows = []
    for size in world.progress(elements, f"precision on {world.size} ranks"):
        generator = torch.Generator().manual_seed(world.rank)
        gradient = torch.randn(size, generator=generator).to(world.device)
        half, residual = gradient.bfloat16(), torch.zeros_like(gradient)

        def ours(gradient: torch.Tensor = gradient, residual: torch.Tensor = residual) -> None:
            quantized_gradients.all_reduce(gradient, residual)

        def theirs(half: torch.Tensor = half) -> None:
            ring.all_reduce(half.clone())  # the ring overwrites what it is given

        sent = [_sent(way) for way in (ours, theirs)]
        medians = interleaved(world, {"ours": ours, "theirs": theirs}, repeats)
        what = f"all-reduce of {size:,} gradients, {sent[0]:,} bytes per rank, {world.size} ranks"
        against = f"a ring in bfloat16, {sent[1]:,} bytes"
        rows.append(Comparison(what, medians["ours"].wall, medians["theirs"].wall, against))
    return rows


def _sent(way: Callable[[], None]) -> int:
    """Bytes that this rank sends, as the ledger counts them."""
    with Ledger() as ledger:
        way()
    return ledger.sent
