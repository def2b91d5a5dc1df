"""The lesson of `minitrain.zero.constant_buffers`: rounds, sums, and bytes in models of two sizes."""

from __future__ import annotations

from unittest import mock

import torch

from minitrain.comm import Ledger, Peak, World, native
from minitrain.comm.control import gather_objects
from minitrain.costs import constant_buffers as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.zero import constant_buffers as technique

SIZES = (700, 5, 12_000, 1, 294)  # elements of a model's gradients: 13,000, the largest more than the usual buffer


def demo(world: World) -> list[Claim]:
    """Sums gradients through one small buffer; the table shows rounds, sums, and bytes in models of two sizes."""
    rows, size = Rows("Rajbhandari et al. 2020, §6.2"), 777  # B, elements of the buffer
    mine = gradients(world)
    everyone = gather_objects([tensor.cpu() for tensor in mine])
    with Ledger() as ledger:
        technique.all_reduce_through(torch.empty(size, device=world.device), mine)
    what, rounds = (
        f"all-reduces of {sum(SIZES):,} gradients through a buffer of B = {size}",
        costs.rounds(sum(SIZES), size),
    )
    rows.add(what, "⌈Ψ/B⌉", rounds, ledger.calls("all_reduce"), "1")
    sums = [torch.stack(parts).sum(0) for parts in zip(*everyone, strict=True)]
    what = "elements that differ from the sum over ranks, whole numbers in float32"
    rows.equal(what, [tensor.cpu() for tensor in mine], sums, "Σ over ranks")

    for models in (1, 4):
        mine = gradients(world, models)
        # torch's all-reduce without the checks of a demo, whose messages take memory, too.
        unchecked = mock.patch.object(technique, "all_reduce", lambda *args: native.all_reduce(*args, check=False))
        with unchecked, Peak(world.device) as peak:
            technique.all_reduce_through(torch.empty(size, device=world.device), mine)
        rows.add(
            "bytes for sending through a constant buffer, in a model and in one four times as large",
            "4B",
            costs.buffer_bytes(models * sum(SIZES), size),
            peak.bytes,
            case=f"Ψ = {models * sum(SIZES):,}",
            absolute=511 if world.device.type == "cuda" else 0,  # CUDA's allocator rounds up to 512 bytes
        )
    return rows.claims()


def gradients(world: World, models: int = 1) -> list[torch.Tensor]:
    """Whole numbers that differ from rank to rank, so that sums are exact in any order; those of several models."""
    generator = torch.Generator().manual_seed(world.rank)
    return [torch.randint(-9, 10, (size,), generator=generator).float().to(world.device) for size in SIZES * models]
