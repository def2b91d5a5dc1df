"""The lesson of `minitrain.roofline.fusion`: bytes moved one by one, in tiles, and by torch.compile."""

from __future__ import annotations

import logging
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


def demo(world: World, compiled: bool = False) -> list[Claim]:
    """Fuses bias, GELU and dropout; the table shows bytes moved and equal bits, and next to it the time here.

    Args:
        compiled: Also have torch.compile fuse them, which takes some seconds and a compiler for C++.
    """
    rows = Rows("Narayanan et al. 2021, §4.2; Ivanov et al. 2021")
    for dtype in (torch.float32, torch.bfloat16):
        x, bias, keep = inputs(world, dtype)
        item, case = x.element_size(), str(dtype).removeprefix("torch.")
        apart, together = (costs.bias_gelu_dropout(x.numel(), fused, item).bytes for fused in (False, True))
        (one, moved), (tiles, less) = (counted(call, x, bias, keep) for call in (one_by_one, partial(fused, rows=TILE)))
        what = "bytes moved by bias, GELU and dropout, one after the other, in float32 and bfloat16"
        rows.add(what, "7wN", apart, moved, case=case)
        rows.add("bytes moved by bias, GELU and dropout, fused in tiles", "3wN", together, less, case=case)
        _, large = counted(partial(fused, rows=ROWS // 2), x, bias, keep)
        what = "bytes moved in tiles that are too large for fast memory: as many as one after the other"
        rows.add(what, "7wN", apart, large, case=case)
        rows.equal("elements that differ from those of one operation after the other", tiles, one, case=case)
    if world.rank == 0:  # the others wait: ranks that share a processor would measure each other
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # several would spend longer on sharing a small tile than on computing it
        several = inputs(world, torch.float32, 4 * ROWS, 4 * COLUMNS)
        for name, call in (("one after the other", one_by_one), ("in tiles", partial(fused, rows=TILE))):
            world.cost(f"bias, GELU and dropout, {name}", 1e3 * best(partial(call, *several), world.device, 3), "ms")
        if compiled:
            by_torch(world, *several)
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


def by_torch(world: World, x: Tensor, bias: Tensor, keep: Tensor) -> float:
    """Measure what torch.compile makes of `one_by_one`; returns the bytes that it moves by its own count, over x's."""
    from torch._inductor import compile_fx, metrics  # the compiler: only where it is used

    # It counts bytes only for its log, which nobody needs to see.
    compile_fx.inductor_metrics_log.setLevel(logging.INFO)
    compile_fx.inductor_metrics_log.propagate = False
    metrics.reset()
    call = torch.compile(one_by_one)
    seconds = best(partial(call, x, bias, keep), world.device, 3)
    world.cost("bias, GELU and dropout, by torch.compile", 1e3 * seconds, "ms")
    world.cost("kernels that torch.compile makes of the three", metrics.generated_kernel_count, "kernels")
    world.cost("bytes that its kernels move, over those of x", metrics.num_bytes_accessed / x.nbytes, "1")
    return metrics.num_bytes_accessed / x.nbytes
