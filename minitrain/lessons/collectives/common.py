"""Shared by the demos of this chapter: counting bytes, comparing values, and timing on the virtual clock.

On four ranks several formulas give one number: log2 n is n/2 there, and rounding it up or down changes nothing. So
each claim is tried on three ranks, too, and where elements do not divide or are too few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.comm import Ledger, Peak, Timeline, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.comm.messages import Group, Handle, rank_and_size
from minitrain.comm.timeline import Links
from minitrain.lessons.claims import Claim, fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The links of the virtual clock: 7.6 µs and 29 ps per byte (34 GB/s). Powers of two, so that no sum of times rounds and
# the virtual clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-17, 2.0**-35

HELD = "small form: {} all-reduce of {:,} float32: most bytes held next to the tensor"

Start = Callable[[Tensor], Handle | Tensor]


def something_to_send(elements: int) -> None:
    """Refuse a demo on an empty tensor: it sends nothing, which no formula of time covers.

    Raises:
        ValueError: `elements` is below 1.
    """
    if elements < 1:
        raise ValueError(f"elements={elements} leaves nothing to send; use at least 1")


def tensor(world: World, elements: int) -> Tensor:
    """Whole numbers from −8 to 8, different on each rank: their sums are exact in any order."""
    return _drawn(world.rank, elements).to(world.device, copy=True)


@lru_cache(maxsize=4)  # drawing a million takes longer than sending them
def _drawn(seed: int, elements: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (elements,), generator=generator, dtype=torch.float32)


def finish(started: Handle | Tensor) -> Tensor | None:
    """Wait for a verb of a full form, and return its result; one of a small form has waited already."""
    return started.wait() if isinstance(started, Handle) else started


@dataclass(frozen=True)
class Verb:
    """A verb, and its theory.

    Attributes:
        full: Its full form: of a tensor, of the root where there is one, and `group=`.
        cost: Its traffic by `minitrain.costs.communication`: of elements, bytes of one, ranks, rank, and the root.
        sent: Formula of the bytes that a rank sends.
        messages: Formula of the number of messages.
        source: Where the formulas come from.
        small: Its small form, if it has one.
        fits: The numbers of ranks on which the small form runs.
        rooted: Whether a root is named: the source of a broadcast, the rank at which a reduce ends.
    """

    full: Callable[..., Any]
    cost: Callable[..., Any] | None = None
    sent: str = ""
    messages: str = ""
    source: str = ""
    small: Callable[..., Any] | None = None
    fits: Callable[[int], bool] = lambda ranks: True
    rooted: bool = False

    def forms(self, group: Group) -> Iterator[tuple[str, Start, int]]:
        """Each way to start it among some ranks: a name, the verb of a tensor, the root."""
        ranks = rank_and_size(group)[1]
        for root in sorted({0, ranks - 1} if self.rooted else {0}):
            arguments = (root,) if root else ()  # rank 0 need not be named
            name = f"full form, root {root}" if self.rooted else "full form"
            yield name, lambda values, arguments=arguments: self.full(values, *arguments, group=group), root
        if self.small is not None and self.fits(ranks):
            yield "small form", partial(self.small, group=group), 0


def groups_of(world: World) -> dict[str, Group]:
    """Everyone, and where there are more, the first three ranks: the groups that this rank is in. All ranks call it."""
    found: dict[str, Group] = {f"{world.size} ranks": None}
    if world.size > 3:
        three = new_group([0, 1, 2])
        if world.rank < 3:
            assert isinstance(three, dist.ProcessGroup)
            found["3 ranks"] = three
    return found


def traffic(
    world: World, groups: Mapping[str, Group], algorithm: str, verbs: Mapping[str, Verb], elements: int
) -> list[Claim]:
    """Claims on what each rank sends, counted message by message: the bytes of every verb, and all their messages.

    Args:
        world: This rank.
        groups: See `groups_of`.
        algorithm: Its name, for the rows.
        verbs: By their names; of the first one the bytes are key.
        elements: Elements of float32; one more is tried, and fewer than ranks. Three ranks add int64.
    """
    rows, messages = [], {}
    counts = "; ".join(verb.messages for verb in verbs.values())
    for name, verb in verbs.items():
        sent = {}
        for where, group in groups.items():
            rank, ranks = rank_and_size(group)
            sizes = (3001,) if group else (elements + 1, elements)
            for size in (*sizes, max(1, ranks - 1)):
                dtype = torch.int64 if group else torch.float32
                for form, start, root in verb.forms(group):
                    arguments = (root,) if root else ()
                    assert verb.cost is not None
                    predicted = verb.cost(size, dtype.itemsize, ranks, rank, *arguments)
                    ledger = count(world, start, size, dtype)
                    case = f"{form}, {size:,} elements on {where}"
                    sent[case] = Claim("", verb.sent, predicted.bytes, ledger.sent, "B", verb.source)
                    claim = Claim("", counts, predicted.messages, ledger.messages, "messages", verb.source)
                    messages[f"{name}, {case}"] = claim
        what = f"{algorithm} {name} of up to {elements + 1:,} float32: bytes sent by this rank"
        rows.append(fold(what, sent, key=not rows))
    return [*rows, fold(f"{algorithm} {', '.join(verbs)}: messages sent by this rank", messages)]


def count(world: World, start: Start, elements: int, dtype: torch.dtype = torch.float32) -> Ledger:
    """Run a verb, and count what this rank sends."""
    values = tensor(world, elements).to(dtype)
    with Ledger() as ledger:
        finish(start(values))
    return ledger


def memory(world: World, algorithm: str, small: Start, elements: int, formula: str, size: int, source: str) -> Claim:
    """The claim on what a small form's all-reduce holds next to the tensor."""
    values = tensor(world, elements)
    with Peak(world.device) as peak:
        finish(small(values))
    # A GPU's allocator hands out blocks of 512 bytes.
    blocks = 512 if world.device.type == "cuda" else 0
    return Claim(HELD.format(algorithm, elements), formula, size, peak.bytes, "B", source, absolute=blocks)


def values(world: World, groups: Mapping[str, Group], algorithm: str, verbs: Mapping[str, Verb]) -> list[Claim]:
    """Claims that every verb, in each form and from each root, gives what torch.distributed gives.

    Integers: exactly. Floating-point numbers: adding n of them takes n−1 additions in whatever order, and each rounds
    by at most u = eps/2 of its result. So every order is within γ · Σ|xᵢ| of the true sum, γ = (n−1)u / (1 − (n−1)u)
    (Higham 2002, "Accuracy and Stability of Numerical Algorithms", §4.2), and two orders within 2γ · Σ|xᵢ| of each
    other: about (n−1) · eps. Two ranks make one addition, and a + b = b + a to the last bit. The two forms add in one
    order.
    """
    same, near = {}, {}
    generator = torch.Generator().manual_seed(world.rank)
    for where, group in groups.items():
        ranks = rank_and_size(group)[1]
        for shape in ((73, 137), (max(1, ranks - 1),)):  # 10,001 elements, and fewer than ranks
            mine = torch.randint(-(2**31), 2**31, shape, generator=generator).to(world.device)
            for name, verb in verbs.items():
                for form, start, root in verb.forms(group):
                    wrong = unlike(name, start, mine, group, root)
                    same[f"{name}, {form}, {tuple(shape)} on {where}"] = Claim("", "0", 0, wrong, how="compared")
        real = torch.randn(10_001, generator=generator).to(world.device)
        sums = {}
        for form, start, _ in verbs["all-reduce"].forms(group):
            sums[form] = real.clone()
            finish(start(sums[form]))
        theirs, sizes = real.clone(), real.double().abs()
        dist.all_reduce(theirs, group=group)
        dist.all_reduce(sizes, group=group)
        for form, ours in sums.items():
            error = ((ours.double() - theirs.double()).abs() / sizes).max().item()
            rounding = (ranks - 1) * torch.finfo(torch.float32).eps / 2
            bound = 2 * rounding / (1 - rounding) if ranks > 2 else 0.0
            source = "Higham 2002, §4.2"
            near[f"{form} on {where}"] = Claim("", "(n−1)·eps", bound, error, "1", source, "compared", "<=")
            apart = int((ours != sums["full form"]).sum())
            same[f"all-reduce of float32, {form} beside the full form, on {where}"] = Claim(
                "", "0", 0, apart, how="compared"
            )
    every = f"{algorithm}, every verb in each form: elements that differ from torch.distributed's, or between the forms"
    distance = f"{algorithm} all-reduce of float32: distance from dist.all_reduce, in Σ|xᵢ|"
    return [fold(every, same, key=True), fold(distance, near)]


def unlike(verb: str, start: Start, mine: Tensor, group: Group, root: int) -> int:
    """Elements of a verb's result on this rank that differ from those of torch.distributed."""
    rank, ranks = rank_and_size(group)
    found, whole = mine.clone(), mine.clone()
    result = finish(start(found))
    if verb == "all-gather":
        everyone = [torch.empty_like(mine) for _ in range(ranks)]
        dist.all_gather(everyone, mine, group)
        chunks = [its.view(-1).tensor_split(ranks)[number] for number, its in enumerate(everyone)]
        whole = torch.cat(chunks).view_as(mine)
    elif verb == "broadcast":
        dist.broadcast(whole, group_src=root, group=group)
    elif verb == "reduce":
        dist.reduce(whole, group_dst=root, group=group)
    else:
        dist.all_reduce(whole, group=group)
    if verb == "reduce-scatter":
        assert result is not None
        found, whole = (each.view(-1).tensor_split(ranks)[rank] for each in (found, whole))
        return int((result != whole).sum()) + int((found != whole).sum())  # returned, and in its slot of the tensor
    if verb == "reduce" and rank != root:
        return 0  # the others hold sums over some of the ranks
    return int((found != whole).sum())


def virtual_run(
    world: World,
    start: Start,
    elements: int,
    alpha: float = ALPHA,
    beta: float = BETA,
    links: Links | None = None,
    group: Group = None,
) -> tuple[float, Timeline]:
    """Run a verb under a virtual clock: when the last rank of a group is done, and which rank sent what when."""
    sent = tensor(world, elements)
    with VirtualClock(alpha, beta, links) as clock:
        finish(start(sent))
    return max(gather_objects(clock.now, group)), clock.timeline.gather(group)


def times(
    world: World,
    groups: Mapping[str, Group],
    what: str,
    verbs: Mapping[str, tuple[Callable[..., Any], Callable[..., float]]],
    elements: int,
    formula: str,
    source: str,
    key: bool = False,
    fits: Callable[[int], bool] = lambda ranks: True,
) -> Claim:
    """The claim on the time until the last rank is done, on the virtual clock.

    Args:
        world: This rank.
        groups: See `groups_of`.
        what: The timed verb, for the row.
        verbs: Verbs of which the formula holds, by their names: each of a tensor and `group=`, and with it its time by
            `minitrain.costs.communication`: of bytes, ranks, α and β.
        elements: Elements of float32, rounded up so that all chunks, and all blocks of halving, are of one size; three
            ranks take 3,072.
        formula: The formula.
        source: The paper.
        key: See `Claim`.
        fits: On how many ranks the one called "small form" runs.
    """
    cases = {}
    for where, group in groups.items():
        ranks = rank_and_size(group)[1]
        step = ranks << (ranks.bit_length() - 1)
        even = 3072 if group else -(-elements // step) * step
        for name, (start, cost) in verbs.items():
            if name == "small form" and not fits(ranks):
                continue
            seconds, _ = virtual_run(world, partial(start, group=group), even, group=group)
            predicted = cost(4 * even, ranks, ALPHA, BETA)
            claim = Claim("", formula, predicted, seconds, "virtual s", source, "virtual clock")
            cases[f"{name} on {where}"] = claim
    return fold(f"{what}: time until the last rank is done", cases, key)


def side_by_side(timelines: dict[str, Timeline]) -> Figure:
    """A picture of several algorithms on one time scale, one below the other: which rank sends when."""
    from matplotlib.figure import Figure

    sent = {name: [s for s in line.spans if s.kind == "send"] for name, line in timelines.items()}
    ranks = 1 + max((span.rank for spans in sent.values() for span in spans), default=0)
    end = max((span.end for spans in sent.values() for span in spans), default=1.0)
    figure = Figure(figsize=(9, 0.8 + len(sent) * (0.7 + 0.28 * ranks)), layout="constrained")
    for row, (name, spans) in enumerate(sent.items()):
        axes = figure.add_subplot(len(sent), 1, row + 1)
        for span in spans:
            width = 1e6 * (span.end - span.start)
            bar = axes.barh(span.rank, width, left=1e6 * span.start, color="#009E73", edgecolor="white", hatch="||")
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
