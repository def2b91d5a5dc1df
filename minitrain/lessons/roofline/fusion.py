"""The lesson of `minitrain.roofline.fusion`: bytes moved one by one, and in tiles."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import roofline as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.rows import Rows
from minitrain.roofline.fusion import Moved, fused, one_by_one
from minitrain.roofline.peaks import best

ROWS, COLUMNS, TILE = 1024, 512, 16
FAST = 2**18  # bytes: a tile and what is computed of it fit, and a whole tensor doesn't


def demo(world: World) -> list[Claim]:
    """Fuses bias, GELU and dropout; the table shows bytes moved and equal bits, and next to it the time here."""
    rows = Rows("Narayanan et al. 2021, §4.2; Ivanov et al. 2021")
    x, bias, keep = inputs(world, torch.bfloat16)
    apart, together = (costs.bias_gelu_dropout(x.numel(), fused, x.element_size()).bytes for fused in (False, True))
    (one, moved), (tiles, less) = (counted(call, x, bias, keep) for call in (one_by_one, partial(fused, rows=TILE)))
    rows.add("bytes moved by bias, GELU and dropout, one after the other", "7wN", apart, moved)
    rows.add("bytes moved by bias, GELU and dropout, fused in tiles", "3wN", together, less)
    _, large = counted(partial(fused, rows=ROWS // 2), x, bias, keep)
    what = "bytes moved in tiles that are too large for fast memory: as many as one after the other"
    rows.add(what, "7wN", apart, large)
    rows.equal("elements that differ from those of one operation after the other", tiles, one)
    if world.rank == 0:  # the others wait: ranks that share a processor would measure each other
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several would spend longer on sharing a small tile than on computing it
        several = inputs(world, torch.float32, 4 * ROWS, 4 * COLUMNS)
        for name, call in (("one after the other", one_by_one), ("in tiles", partial(fused, rows=TILE))):
            world.cost(f"bias, GELU and dropout, {name}", 1e3 * best(partial(call, *several), world.device, 3), "ms")
        torch.set_num_threads(threads)
    return rows.claims()


def inputs(world: World, dtype: torch.dtype, rows: int = ROWS, columns: int = COLUMNS) -> list[Tensor]:
    """x, bias, and the mask of a dropout of a tenth."""
    generator = torch.Generator().manual_seed(world.rank)
    x, bias = (torch.randn(shape, generator=generator) for shape in ((rows, columns), (columns,)))
    keep = (torch.rand(rows, columns, generator=generator) >= 0.1) / 0.9
    return [each.to(world.device, dtype) for each in (x, bias, keep)]


def counted(call, x: Tensor, bias: Tensor, keep: Tensor) -> tuple[Tensor, int]:
    """The result, and the bytes that were moved."""
    with Moved(FAST) as moved:
        y = call(x, bias, keep)
    return y, moved.bytes
