"""The demo of `constant_buffers`: rounds, bytes of the buffer in models of two sizes, equal sums, and their time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from minitrain.collectives import ring
from minitrain.comm import Ledger, Peak, World, native
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Group, Handle
from minitrain.comm.timeline import VirtualClock
from minitrain.costs import constant_buffers as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.zero import constant_buffers as technique

PAPER = "Rajbhandari et al. 2020"
SIZES = (700, 5, 12_000, 1, 294)  # elements of a model's gradients: 13,000, the largest more than any buffer here
ALPHA, BETA = 1e-5, 1e-9  # virtual seconds per message and per byte


def gradients(world: World, times: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Whole numbers that differ from rank to rank, so that sums are exact in any order; `times` models' worth."""
    generator = torch.Generator().manual_seed(world.rank)
    drawn = [torch.randint(-9, 10, (size,), generator=generator) for size in SIZES * times]
    return [tensor.to(world.device, dtype) for tensor in drawn]


def rounds(world: World, buffers: tuple[int, ...]) -> tuple[Claim, Claim]:
    """Claims on the number of all-reduces, and on the sums."""
    calls, equal = {}, {}
    for size in buffers:
        for times, dtype in ((1, torch.float32), (2, torch.bfloat16)):
            mine = gradients(world, times, dtype)
            everyone = gather_objects([tensor.cpu().double() for tensor in mine])
            buffer = torch.empty(size, device=world.device)
            with Ledger() as ledger:
                technique.all_reduce_through(buffer, mine)
            case = f"B = {size:,}, Ψ = {times * sum(SIZES):,}"
            expected = costs.rounds(times * sum(SIZES), size)
            calls[case] = Claim("", "⌈Ψ/B⌉", expected, ledger.calls("all_reduce"), "1", f"{PAPER}, §6.2")
            sums = [torch.stack(parts).sum(0) for parts in zip(*everyone, strict=True)]
            different = sum(int((one.cpu().double() != its).sum()) for one, its in zip(mine, sums, strict=True))
            equal[case] = Claim("", "Σ over ranks", 0, different, "elements", "derived", "compared")
    listed = f"B = {buffers[0]:,}, and smaller and larger buffers"
    return (
        fold(f"all-reduces of {sum(SIZES):,} gradients through a buffer of {listed}", calls, key=True),
        fold("elements that differ from the sum over ranks, whole numbers in float32 and bfloat16", equal, key=True),
    )


def fused(mine: list[Tensor], group: Group = None) -> None:
    """A buffer for all gradients, which grows with the model."""
    buffer = torch.cat([tensor.float() for tensor in mine])
    technique.all_reduce(buffer, group).wait()
    for tensor, total in zip(mine, buffer.split([len(tensor) for tensor in mine]), strict=True):
        tensor.copy_(total)


@contextmanager
def carried(all_reduce: Callable[[Tensor, Group], Tensor]) -> Iterator[None]:
    """Have another all-reduce carry the buffer."""
    before = technique.all_reduce
    technique.all_reduce = lambda tensor, group=None: Handle((), all_reduce(tensor, group))  # type: ignore[assignment]
    try:
        yield
    finally:
        technique.all_reduce = before


def unchecked(tensor: Tensor, group: Group) -> Tensor:
    """torch's all-reduce without the checks of a demo, whose messages take memory, too."""
    native.all_reduce(tensor, group, check=False).wait()
    return tensor


def memory(world: World, size: int) -> list[Claim]:
    """Claims on the bytes that sending takes, in a model and in one four times as large."""
    constant, growing = {}, {}
    for times in (1, 4):
        mine = gradients(world, times)
        with carried(unchecked), Peak(world.device) as peak:
            technique.all_reduce_through(torch.empty(size, device=world.device), mine)
        case, elements = f"Ψ = {times * sum(SIZES):,}", times * sum(SIZES)
        expected = costs.buffer_bytes(elements, size)
        constant[case] = Claim("", "4B", expected, peak.bytes, "B", f"{PAPER}, §6.2", absolute=slack(world))
        with carried(unchecked), Peak(world.device) as peak:
            fused(mine)
        expected = costs.buffer_bytes(elements)
        growing[case] = Claim("", "4Ψ", expected, peak.bytes, "B", f"{PAPER}, §6.2", absolute=slack(world))
    both = "in a model and in one four times as large"
    return [
        fold(f"bytes for sending through a constant buffer, {both}", constant, key=True),
        fold(f"bytes for sending through a fused buffer, {both}", growing),
    ]


def slack(world: World) -> int:
    """CUDA's allocator rounds up to 512 bytes."""
    return 511 if world.device.type == "cuda" else 0


def times(world: World, buffers: tuple[int, ...]) -> list[Claim]:
    """Claims on the virtual time through rings: a large buffer is as good as one for all, and a small one is slow."""
    elements, cases = 12 * 1200, {}
    for size in buffers:
        mine = [torch.ones(elements, device=world.device)]
        buffer = torch.empty(size, device=world.device)
        with carried(ring.all_reduce), VirtualClock(ALPHA, BETA) as clock:
            technique.all_reduce_through(buffer, mine)
        measured = max(gather_objects(clock.now))
        predicted = costs.time(elements, size, world.size, ALPHA, BETA)
        cases[f"B = {size:,}"] = Claim(
            "",
            "⌈Ψ/B⌉ · 2(n−1)α + 2(n−1)/n · 4βΨ",
            predicted,
            measured,
            "virtual s",
            f"{PAPER}, §6.2",
            "virtual clock",
            tolerance=1e-9,
        )
    listed = ", ".join(f"{size:,}" for size in buffers)
    return [fold(f"time of {elements:,} elements through rings, buffers of {listed}", cases, key=True)]


def published() -> Claim:
    """The paper's example: a fused buffer in float32 for 3 billion parameters."""
    predicted = costs.buffer_bytes(3e9)
    return Claim("a fused buffer of 3 · 10⁹ parameters", "4Ψ", predicted, 12e9, "B", f"{PAPER}, §6.2", "published")


def demo(world: World, size: int = 1000) -> list[Claim]:
    """Sums gradients through one small buffer; the table shows rounds, bytes in models of two sizes, and the time.

    Args:
        size: B, elements of the buffer.
    """
    claims = [
        *rounds(world, (size, 777, 5000, 50_000)),
        *memory(world, size),
        *times(world, (1200, 600, 14_400)),
        published(),
    ]
    mine, buffer = gradients(world), torch.empty(size, device=world.device)
    with world.timed(f"{sum(SIZES):,} gradients through a buffer of {size:,}"):
        technique.all_reduce_through(buffer, mine)
    return claims
