"""The time of a step on the virtual clock: what there is to wait for in stage 1, with and without overlap, and in
stage 3, with and without prefetching; and a parameter's life through a step of stage 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minitrain.comm import VirtualClock, World
from minitrain.comm.comm import Comm
from minitrain.comm.timeline import Span, draw
from minitrain.costs.communication import ring_reduce_scatter_time
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.network import Network
from minitrain.lessons.pictures.memory_bar import LOOKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from minitrain.zero.full.stage1 import Zero1
    from minitrain.zero.full.stage3 import Event, Zero3

# The virtual machine: powers of two, so that no sum of times rounds and the clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-5, 2.0**-14  # virtual seconds per message, and per byte
FORWARD, BACKWARD = 0.25, 0.5  # virtual seconds of a layer
# More than carrying takes on four ranks, and less: so that each maximum of the formula is now this, now that.
OTHERS = ((5, 0.5, 1.0), (5, 0.125, 0.25), (2, 0.25, 0.5), (1, 0.5, 0.25))  # layers, forward, backward
PAPER = "Zhao et al. 2023"


class Layer(nn.Module):
    """A layer whose parameters are a multiple of n elements, so that a ring's chunks are equal and its time exact."""

    def __init__(self, ranks: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256 * ranks))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.mean()


def virtual_step(
    world: World,
    stage: type[Zero3],
    layers: int,
    prefetch: bool,
    forward: float = FORWARD,
    backward: float = BACKWARD,
) -> tuple[float, list[Span]]:
    """The virtual seconds of a step's forward, backward and synchronize; and its spans, from 0.

    Of two steps the second is timed: in the first the order of the layers is learnt.
    """
    module = nn.Sequential(*(Layer(world.size) for _ in range(layers))).to(world.device)
    clock = VirtualClock()
    for number, layer in enumerate(module):
        assert isinstance(layer, Layer)
        # Before the module is wrapped: the gathering's hook goes before these, and a gradient leaves after them.
        layer.register_forward_pre_hook(lambda *_, number=number: clock.work(forward, f"{number}", "forward"))
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, number=number: clock.work(backward, f"{number}", "backward")
        )
    model = stage(module, torch.optim.SGD, Comm(collectives=Network(clock, ALPHA, BETA)), lr=0.1)
    model.unshard_hooks.prefetch = prefetch
    begin = 0.0
    for _ in range(2):
        begin = clock.now
        model(torch.ones((), device=world.device)).backward()
        model.synchronize()
    lane = "2 prefetching" if prefetch else "1 waiting"  # numbered, since rows are drawn in the order of their names
    spans = [
        Span(span.rank, f"{lane}, {span.lane}", span.kind, span.label, span.start - begin, span.end - begin)
        for span in clock.timeline.spans
        if span.start >= begin
    ]
    return clock.now - begin, spans


def step_time(layers: int, carry: float, prefetch: bool, forward: float = FORWARD, backward: float = BACKWARD) -> float:
    """Virtual seconds of a step of L equal layers, each of whose gatherings and reduce-scatters takes `carry`, c.

    Without prefetching a layer waits for its gathering, forward and backward. Backward, its gathering also waits for
    the reduce-scatter of the layer before, on a network that carries one at a time: L(F + B + 3c) in all.

    With prefetching only the first gathering is waited for, forward and backward. Forward, each other one is on its way
    while a layer runs: c + (L−1) · max(F, c) + F. Backward, while the last layer runs the next is gathered: max(B, c);
    while each other but the first runs, the reduce-scatter of the one before and the gathering of the next: max(B, 2c);
    while the first runs, a reduce-scatter: max(B, c); and its own reduce-scatter follows.
    """
    if not prefetch:
        return layers * (forward + backward + 3 * carry)
    there = carry + (layers - 1) * max(forward, carry) + forward
    if layers == 1:
        return there + carry + backward + carry
    between = (layers - 2) * max(backward, 2 * carry)
    return there + carry + max(backward, carry) + between + max(backward, carry) + carry


def virtual_times(world: World, stage: type[Zero3], layers: int = 4) -> tuple[list[Claim], list[Span]]:
    """Claims on the time of a step without and with prefetching, at several speeds; and rank 0's spans at the first."""
    carry = ring_reduce_scatter_time(4 * 256 * world.size, world.size, ALPHA, BETA)
    claims, spans = [], []
    for prefetch, name, formula in (
        (False, "each unit waited for", "L(F + B + 3c)"),
        (True, "the next unit prefetched", "3c + (L−1)·max(F,c) + F + 2·max(B,c) + (L−2)·max(B,2c)"),
    ):
        cases = {}
        for speed in ((layers, FORWARD, BACKWARD), *OTHERS):
            count, *times = speed
            measured, its = virtual_step(world, stage, count, prefetch, *times)
            spans += its if not cases else []
            predicted = step_time(count, carry, prefetch, *times)
            case = "L = {}, F = {}, B = {}".format(*speed)
            cases[case] = Claim("", formula, predicted, measured, "virtual s", f"{PAPER}, §3.3", "virtual clock")
        claims.append(fold(f"time of a step of {layers} layers, {name}, and at other speeds", cases, key=prefetch))
    return claims, spans


def overlapped_step(
    world: World, stage: type[Zero1], layers: int, overlap: bool, forward: float, backward: float
) -> float:
    """The virtual seconds of a step of stage 1 from the end of one to the end of the next."""
    module = nn.Sequential(*(Layer(world.size) for _ in range(layers))).to(world.device)
    clock = VirtualClock()
    for number, layer in enumerate(module):
        assert isinstance(layer, Layer)
        layer.register_forward_pre_hook(lambda *_, number=number: clock.work(forward, f"{number}", "forward"))
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, number=number: clock.work(backward, f"{number}", "backward")
        )
    model = stage(module, torch.optim.SGD, Comm(collectives=Network(clock, ALPHA, BETA)), lr=0.1)
    if overlap:
        model.send_in_backward(1)
        model.gather_in_forward(module)
    ends = []
    for _ in range(2):
        model(torch.ones((), device=world.device)).backward()
        model.synchronize()
        model.step()
        model.zero_grad()
        ends.append(clock.now)
    return ends[1] - ends[0]


def overlapped_step_time(layers: int, carry: float, overlap: bool, forward: float, backward: float) -> float:
    """Virtual seconds of a step of L equal layers whose gradients, and whose parameters, each take c to carry.

    Waited for, all of it: L(F + B + 2c). With overlap the first layer's parameters are waited for, and then each next
    one's are on their way while a layer runs; and so are gradients, but for those of the layer that backward reaches
    last: c + F + (L−1) · max(F, c) + B + (L−1) · max(B, c) + c. Where layers take longer than messages, 2c are left.
    """
    if not overlap:
        return layers * (forward + backward + 2 * carry)
    return 2 * carry + forward + backward + (layers - 1) * (max(forward, carry) + max(backward, carry))


def overlapped_times(world: World, stage: type[Zero1], layers: int = 4) -> list[Claim]:
    """Claims on the time of a step of stage 1 without and with overlap, at several speeds."""
    carry = ring_reduce_scatter_time(4 * 256 * world.size, world.size, ALPHA, BETA)
    claims = []
    for overlap, name, formula in (
        (False, "everything waited for", "L(F + B + 2c)"),
        (True, "messages under backward and forward", "2c + F + B + (L−1)(max(F,c) + max(B,c))"),
    ):
        cases = {}
        for count, *times in ((layers, FORWARD, BACKWARD), *OTHERS):
            measured = overlapped_step(world, stage, count, overlap, *times)
            predicted = overlapped_step_time(count, carry, overlap, *times)
            case = "L = {}, F = {}, B = {}".format(count, *times)
            cases[case] = Claim("", formula, predicted, measured, "virtual s", "derived", "virtual clock")
        claims.append(fold(f"time of a step of {layers} layers, {name}, and at other speeds", cases, key=overlap))
    return claims


def life(events: Sequence[Event], units: Sequence[str] | None = None) -> list[Span]:
    """A unit's parameters and gradients through a step, as spans; "time" is the number of the event.

    Parameters: on their way, used forward, used backward. Between these they are not in memory. Gradients: they arrive,
    and are on their way. A span ends with the next event of its unit that ends it.

    Args:
        events: What `Zero3.events` holds after a step.
        units: Names of the units to show, in this order; None: all, in the order in which they were needed.
    """
    shown = list(units) if units is not None else list(dict.fromkeys(event.unit for event in events))
    kinds = {"gather": "communicate", "forward": "forward", "backward": "backward"}
    spans, begun = [], {}

    def close(lane: str, now: int) -> None:
        if lane in begun:
            label, kind, start = begun.pop(lane)
            spans.append(Span(0, lane, kind, label, start, now))

    for now, (what, unit) in enumerate(events):
        if unit not in shown:
            continue
        row = f"{shown.index(unit)} {unit}"
        if what in kinds:
            close(f"{row}: parameters", now)
            begun[f"{row}: parameters"] = (what, kinds[what], now)
        elif what == "free":
            close(f"{row}: parameters", now)
        elif what == "gradient":
            begun[f"{row}: whole gradients"] = ("they come", "backward", now)
        else:  # "reduce-scatter" or "shard"
            close(f"{row}: whole gradients", now)
            if what == "reduce-scatter":
                begun[f"{row}: whole gradients"] = ("reduce-scatter", "communicate", now)
    for lane in list(begun):
        close(lane, len(events))
    return spans


def picture(spans: list[Span]) -> Figure:
    """Rank 0's two steps, one below the other."""
    return draw(spans, "A step of stage 3: each unit waited for, and the next one prefetched", "virtual seconds")


def life_picture(events: Sequence[Event], units: Sequence[str] | None = None) -> Figure:
    """Of each unit's parameters and gradients, when they are in memory in full on this rank, through a step."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    spans = life(events, units)
    names = list(dict.fromkeys(span.lane.partition(": ")[0] for span in spans))
    rows = [f"{name}: {kind}" for name in names for kind in ("parameters", "whole gradients")]
    figure = Figure(figsize=(9, 1.4 + 0.36 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for span in spans:
        kind = "parameters" if span.lane.endswith("parameters") else "gradients"
        colour, hatch = LOOKS[kind]
        row, moving = rows.index(span.lane), span.kind == "communicate"
        face, edge, pattern = ("white", colour, "") if moving else (colour, "white", hatch)
        width = span.end - span.start
        axes.barh(row, width, left=span.start, height=0.7, color=face, edgecolor=edge, hatch=pattern)
        if kind == "parameters" and not moving:
            axes.text((span.start + span.end) / 2, row, "use", ha="center", va="center", fontsize=7, color="white")
    turn = max((span.end for span in spans if span.label == "forward"), default=0) + 0.5
    axes.axvline(turn, color="#999999", linestyle="--", linewidth=0.8)
    for x, side, text in ((turn - 0.2, "right", "forward"), (turn + 0.2, "left", "backward")):
        axes.text(x, len(rows) - 0.6, text, ha=side, va="bottom", fontsize=9, color="#555555")
    labels = [row.partition(" ")[2].replace("whole ", "") for row in rows]  # without the number that orders them
    axes.set_yticks(range(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, len(events) + 0.2)
    axes.set_xlabel("events of a step, in their order")
    axes.set_title("Stage 3: what is in memory in full on a rank, besides its shards", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    (blue, plain), (orange, striped) = LOOKS["parameters"], LOOKS["gradients"]
    handles = [
        Patch(facecolor="white", edgecolor=blue, label="parameters: gather"),
        Patch(facecolor=blue, edgecolor="white", hatch=plain, label="use"),
        Patch(facecolor=orange, edgecolor="white", hatch=striped, label="gradients: fill up"),
        Patch(facecolor="white", edgecolor=orange, label="reduce-scatter"),
        Patch(facecolor="none", edgecolor="none", label="empty: freed"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    return figure
