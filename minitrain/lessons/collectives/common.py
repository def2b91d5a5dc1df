"""What the demos of this chapter share: counting bytes, comparing sums, and timing on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm import Ledger, Peak, Timeline, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Handle
from minitrain.comm.timeline import Links
from minitrain.costs.communication import Traffic
from minitrain.lessons.claims import Claim, as_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The links of the virtual clock: 7.6 µs and 29 ps a byte (34 GB/s). Powers of two, so that no sum of times rounds and
# the virtual clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-17, 2.0**-35

Start = Callable[[Tensor], Handle | Tensor]


def something_to_send(elements: int) -> None:
    """Refuse a demo on an empty tensor: it sends nothing, and no formula of time says so.

    Raises:
        ValueError: `elements` is below 1.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")


def tensor(world: World, elements: int) -> Tensor:
    """Whole numbers from −8 to 8, other ones on each rank: their sums are exact in any order."""
    generator = torch.Generator().manual_seed(world.rank)
    return torch.randint(-8, 9, (elements,), generator=generator, dtype=torch.float32).to(world.device)


def finish(started: Handle | Tensor) -> None:
    """Wait for a verb of a full form; one of a small form has waited already."""
    if isinstance(started, Handle):
        started.wait()


def small_form(
    world: World,
    what: str,
    small: Start,
    full: Start,
    elements: int,
    predicted: Traffic,
    formulas: tuple[str, str],
    held: tuple[str, int],
    source: str,
) -> list[Claim]:
    """Claims on a small form's all-reduce: bytes and messages sent, memory, and the bits of the full form's sum.

    Args:
        world: This rank.
        what: The verb, for the rows.
        small: The small form's all-reduce.
        full: The full form's.
        elements: Elements of float32 to run them on.
        predicted: This rank's traffic by `minitrain.costs.communication`.
        formulas: Of bytes and of messages.
        held: Formula and bytes of what is held next to the tensor.
        source: The paper.
    """
    what = f"small form: {what}"
    sent, messages = traffic(world, small, elements, predicted, what, formulas, source)
    values = torch.randn(elements, generator=torch.Generator().manual_seed(world.rank)).to(world.device)
    theirs = values.clone()
    with Peak(world.device) as peak:
        finish(small(values))
    finish(full(theirs))
    formula, size = held
    on = f"{what} of {elements:,} float32: "
    # A GPU's allocator hands out blocks of 512 bytes.
    blocks = 512 if world.device.type == "cuda" else 0
    return [
        *as_key(sent),
        messages,
        Claim(on + "most bytes held next to the tensor", formula, size, peak.bytes, "B", source, absolute=blocks),
        Claim(
            on + "elements unlike the full form's", "0", 0, (values != theirs).sum().item(), how="compared", key=True
        ),
    ]


def count(world: World, start: Start, elements: int) -> Ledger:
    """Run a verb on a tensor of float32, and see what this rank sends."""
    values = tensor(world, elements)
    with Ledger() as ledger:
        finish(start(values))
    return ledger


def traffic(
    world: World, start: Start, elements: int, predicted: Traffic, what: str, formulas: tuple[str, str], source: str
) -> list[Claim]:
    """Claims on the bytes and messages that each rank sends, counted message by message.

    Args:
        world: This rank.
        start: The verb to run.
        elements: Elements of float32 to run it on.
        predicted: This rank's traffic by `minitrain.costs.communication`.
        what: The verb, for the row.
        formulas: Of bytes and of messages.
        source: The paper.
    """
    ledger = count(world, start, elements)
    on = f"{what} of {elements:,} float32: "
    return [
        Claim(on + "bytes sent by this rank", formulas[0], predicted.bytes, ledger.sent, "B", source),
        Claim(on + "messages sent by this rank", formulas[1], predicted.messages, ledger.messages, "1", source),
    ]


def same_sums(world: World, all_reduce: Start, what: str, elements: int = 10_001) -> list[Claim]:
    """Claims that an all-reduce gives what `dist.all_reduce` gives.

    Integers: exactly. Floating-point numbers: adding n of them takes n−1 additions in whatever order, and each rounds
    by at most u = eps/2 of its result. So every order is within γ · Σ|xᵢ| of the true sum, γ = (n−1)u / (1 − (n−1)u)
    (Higham 2002, "Accuracy and Stability of Numerical Algorithms", §4.2), and two orders within 2γ · Σ|xᵢ| of each
    other: about (n−1) · eps. Two ranks make one addition, and a + b = b + a to the last bit.
    """
    generator = torch.Generator().manual_seed(world.rank)
    whole = torch.randint(-(2**31), 2**31, (elements,), generator=generator).to(world.device)
    ours, theirs = whole.clone(), whole.clone()
    finish(all_reduce(ours))
    dist.all_reduce(theirs)
    different = (ours != theirs).sum().item()

    real = torch.randn(elements, generator=generator).to(world.device)
    ours, theirs, sizes = real.clone(), real.clone(), real.double().abs()
    finish(all_reduce(ours))
    dist.all_reduce(theirs)
    dist.all_reduce(sizes)
    error = ((ours.double() - theirs.double()).abs() / sizes).max().item()
    rounding = (world.size - 1) * torch.finfo(torch.float32).eps / 2
    bound = 2 * rounding / (1 - rounding) if world.size > 2 else 0.0
    source = "Higham 2002, §4.2"
    return [
        Claim(f"{what} of int64: elements unlike dist.all_reduce's", "0", 0, different, how="compared", key=True),
        Claim(
            f"{what} of float32: distance from dist.all_reduce, in Σ|xᵢ|",
            "(n−1)·eps",
            bound,
            error,
            source=source,
            how="compared",
            relation="<=",
        ),
    ]


def virtual_run(
    world: World, start: Start, elements: int, alpha: float = ALPHA, beta: float = BETA, links: Links | None = None
) -> tuple[float, Timeline]:
    """Run a verb under a virtual clock: when the last rank is done, and who sent what when, on every rank."""
    values = tensor(world, elements)
    with VirtualClock(alpha, beta, links) as clock:
        finish(start(values))
    return max(gather_objects(clock.now)), clock.timeline.gather()


def virtual_time(
    world: World,
    start: Start,
    elements: int,
    predicted: float,
    what: str,
    formula: str,
    source: str,
    key: bool = True,
) -> Claim:
    """Claim on the time until the last rank is done, on the virtual clock."""
    seconds, _ = virtual_run(world, start, elements)
    on = f"{what} of {elements:,} float32: time until the last rank is done"
    return Claim(on, formula, predicted, seconds, "virtual s", source, how="virtual clock", key=key)


def side_by_side(timelines: dict[str, Timeline]) -> Figure:
    """A picture of several algorithms on one scale of time: who sends when, below each other."""
    from matplotlib.figure import Figure

    sent = {name: [s for s in line.spans if s.kind == "send"] for name, line in timelines.items()}
    ranks = 1 + max((span.rank for spans in sent.values() for span in spans), default=0)
    end = max((span.end for spans in sent.values() for span in spans), default=1.0)
    figure = Figure(figsize=(9, 0.8 + len(sent) * (0.7 + 0.28 * ranks)), layout="constrained")
    for row, (name, spans) in enumerate(sent.items()):
        axes = figure.add_subplot(len(sent), 1, row + 1)
        for span in spans:
            width = 1e6 * (span.end - span.start)
            bar = axes.barh(span.rank, width, left=1e6 * span.start, color="#009E73", edgecolor="white", hatch="...")
            if span.end - span.start > 0.012 * end * (1 + len(span.label)):
                box = {"fc": "w", "ec": "none", "pad": 0.8}
                axes.bar_label(bar, [span.label], label_type="center", fontsize=7, bbox=box)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_ylim(ranks - 0.4, -0.6)
        axes.set_xlim(0, 1e6 * end * 1.01)
        done = max((span.end for span in spans), default=0.0)
        axes.set_title(f"{name}: {1e6 * done:.0f} virtual µs", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("virtual µs; a bar is a message on its way out")
    return figure
