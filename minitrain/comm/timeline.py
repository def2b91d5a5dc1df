"""Timelines: who did what when, on the wall's clock or on a virtual one.

A machine with two cores cannot show how eight GPUs would wait for each other, because its ranks take turns. A **virtual
clock** can. Each rank keeps a time of its own; work adds its given cost; each real message carries its sender's virtual
time, and its receiver goes on at the later of the two. So the waiting that a schedule forces is exact, on a machine of
any size.

A message of S bytes takes α + β·S virtual seconds (α: latency, β: seconds per byte), and each rank has one port for
sending and one for receiving, each carrying one message at a time (Thakur, Rabenseifner & Gropp 2005, "Cost Model").
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from minitrain.comm.control import control, gather_objects
from minitrain.watch.calls import observe_calls
from minitrain.watch.observers import Communication, Watch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Links = Callable[[int, int], tuple[float, float]]

# kind -> (color, hatch): colors that the color-blind can tell apart, and a pattern for those who see none.
KINDS = {
    "compute": ("#56B4E9", ""),
    "forward": ("#56B4E9", ""),
    "backward": ("#E69F00", "///"),
    "backward for the input": ("#D55E00", "\\\\\\"),
    "backward for the weights": ("#009E73", "||"),
    "send": ("#009E73", "||"),
    "receive": ("#CC79A7", "xx"),
    "communicate": ("#009E73", "||"),
    "optimizer": ("#F0E442", "++"),
    "wait": ("#DDDDDD", ""),
}


@dataclass(frozen=True)
class Span:
    """Something that took time on a rank, in seconds since the timeline began."""

    rank: int  # the global one
    lane: str  # what is drawn in one row: "compute", "send"; a rank may have several at once
    kind: str  # what decides the color: a key of `KINDS`
    label: str
    start: float
    end: float


class Timeline:
    """Spans of this rank, on the wall's clock (`clock` is None) or a virtual one."""

    def __init__(self, clock: VirtualClock | None = None):
        self.spans: list[Span] = []
        self._clock = clock
        self._origin = time.perf_counter()

    def now(self) -> float:
        """Seconds since the timeline began."""
        return self._clock.now if self._clock else time.perf_counter() - self._origin

    @contextmanager
    def span(self, label: str, kind: str = "compute", lane: str = "") -> Iterator[None]:
        """Record the time spent in a `with` block."""
        self.settle()
        start = self.now()
        try:
            yield
        finally:
            self.settle()
            self.record(label, kind, lane or kind, start, self.now())

    def settle(self) -> None:
        """On the wall's clock of a GPU: wait until the work that this rank has queued is done.

        Messages that were posted ahead have a stream of their own, and are not waited for.
        """
        if self._clock is None and torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record each communication of this rank, from its call until it has been waited for."""

        def observe(communication: Communication) -> Watch:
            return _Traced(self, communication)

        Communication.observers.append(observe)
        observe_calls()
        try:
            yield
        finally:
            Communication.observers.remove(observe)

    def record(self, label: str, kind: str, lane: str, start: float, end: float) -> None:
        self.spans.append(Span(dist.get_rank() if dist.is_initialized() else 0, lane, kind, label, start, end))

    def gather(self, group: dist.ProcessGroup | None = None) -> Timeline:
        """The spans of all ranks; every rank calls it."""
        together = Timeline(self._clock)
        together.spans = [span for spans in gather_objects(self.spans, group) for span in spans]
        return together

    def draw(self, title: str = "", unit: str = "") -> Figure:
        """A Gantt chart: a row for each rank and lane, time to the right."""
        return draw(self.spans, title, unit or ("virtual seconds" if self._clock else "seconds"))


class _Traced(Watch):
    """A communication on a timeline."""

    def __init__(self, timeline: Timeline, communication: Communication):
        self.timeline, self.start = timeline, timeline.now()
        verb, peer = communication.verb, communication.peer
        self.kind = verb if verb in KINDS else "communicate"
        self.label = verb if peer is None else f"{'from' if verb == 'receive' else 'to'} {peer}"
        self.label += f", {communication.tensor.nbytes:,} bytes"

    def ends(self) -> None:
        self.timeline.record(self.label, self.kind, self.kind, self.start, self.timeline.now())


class VirtualClock:
    """The virtual time of this rank: `with VirtualClock(alpha=1e-6, beta=1e-9) as clock: …`.

    While it is open, every message of `minitrain.comm.messages` takes virtual time, and `clock.timeline` records it.
    All ranks open it together, and each starts at 0. torch's own collectives take none: the clock sees only messages.

    Args:
        alpha: Virtual seconds that a message takes whatever its size.
        beta: Virtual seconds per byte.
        links: Gives (alpha, beta) for a pair of global ranks, where links differ (within a node and across).

    Attributes:
        now: The virtual time of this rank in virtual seconds.
        timeline: The spans recorded so far.

    Examples:
        >>> from minitrain.collectives import ring
        >>> from minitrain.comm import VirtualClock
        >>> with VirtualClock(alpha=1e-6, beta=1e-9) as clock:
        ...     ring.all_reduce(torch.ones(1000))
        >>> figure = clock.timeline.gather().draw()
    """

    def __init__(self, alpha: float = 0.0, beta: float = 0.0, links: Links | None = None):
        if alpha < 0 or beta < 0:
            raise ValueError(f"alpha={alpha} and beta={beta} must not be negative; 0 makes messages free")
        self.links: Links = links or (lambda source, to: (alpha, beta))
        self.now = 0.0
        self.timeline = Timeline(self)
        self._rank = dist.get_rank() if dist.is_initialized() else 0
        self._send_port_free = 0.0
        self._receive_port_free = 0.0

    @classmethod
    def active(cls) -> VirtualClock | None:
        """The clock that was opened last in this thread; where there is none, as in autograd's, in the main thread."""
        clocks = [observer.__self__ for observer in Communication.observers if isinstance(observer, MethodType)]
        for thread in (threading.get_ident(), threading.main_thread().ident):
            for clock in reversed(clocks):
                if isinstance(clock, cls) and clock._thread == thread:
                    return clock
        return None

    def __enter__(self) -> VirtualClock:
        self._thread = threading.get_ident()
        Communication.observers.append(self.observe)
        observe_calls()
        return self

    def __exit__(self, *error: Any) -> None:
        Communication.observers.remove(self.observe)

    def observe(self, message: Communication) -> Watch | None:
        """Let a message take virtual time. Its departure time travels with it, as a control message."""
        if message.peer is None or VirtualClock.active() is not self or not message.tensor.numel():
            return None
        return _Timed(self, message)

    def work(self, seconds: float, label: str = "", kind: str = "compute") -> None:
        """Let `seconds` of virtual time pass on this rank."""
        if seconds < 0:
            raise ValueError(f"seconds={seconds} is negative; time only passes")
        self.timeline.record(label, kind, "compute", self.now, self.now + seconds)
        self.now += seconds

    def wait_until(self, moment: float) -> None:
        """Continue at `moment`, or now if that has passed."""
        self.now = max(self.now, moment)

    def start_send(self, size: int, to: int) -> float:
        """Put a message of `size` bytes to global rank `to` on the send port; returns when it will have left."""
        alpha, beta = self.links(self._rank, to)
        start = max(self.now, self._send_port_free)
        self._send_port_free = start + (alpha + beta * size)
        self.timeline.record(f"to {to}", "send", "send", start, self._send_port_free)
        return self._send_port_free

    def finish_receive(self, size: int, source: int, left: float) -> None:
        """Take in a message of `size` bytes that left global rank `source` at virtual time `left`."""
        alpha, beta = self.links(source, self._rank)
        cost = alpha + beta * size
        self._receive_port_free = end = max(left, self._receive_port_free + cost)
        self.timeline.record(f"from {source}", "receive", "receive", end - cost, end)
        self.wait_until(end)


class _Timed(Watch):
    """A message that takes virtual time: its departure time travels with it."""

    def __init__(self, clock: VirtualClock, message: Communication):
        assert message.peer is not None
        self.clock, self.verb, self.size = clock, message.verb, message.tensor.nbytes
        self.there = dist.get_process_group_ranks(message.group)[message.peer]
        self.left = torch.empty(1, dtype=torch.float64, device="cpu")
        beside = control(message.group)
        if message.verb == "send":
            self.left.fill_(clock.start_send(self.size, self.there))
            self.under_way = beside.send([self.left], message.peer, 0)
        else:
            self.under_way = beside.recv([self.left], message.peer, 0)

    def ends(self) -> None:
        self.under_way.wait()
        if self.verb == "send":
            self.clock.wait_until(self.left.item())
        else:
            self.clock.finish_receive(self.size, self.there, self.left.item())


def draw(spans: Iterable[Span], title: str = "", unit: str = "seconds") -> Figure:
    """Draw spans as a Gantt chart, a row for each rank and lane."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    spans = list(spans)
    rows = sorted({(span.rank, span.lane) for span in spans})
    end = max((span.end for span in spans), default=1.0)
    scale, small = (1e6, "µs") if end < 1e-3 else (1e3, "ms") if end < 1 else (1.0, "seconds")
    spans = [replace(span, start=scale * span.start, end=scale * span.end) for span in spans]
    unit, end = unit.replace("seconds", small), scale * end
    figure = Figure(figsize=(9, 1.1 + 0.34 * max(1, len(rows))), layout="constrained")
    axes = figure.add_subplot()
    for span in spans:
        color, hatch = KINDS.get(span.kind, ("#BBBBBB", ""))
        row = rows.index((span.rank, span.lane))
        axes.barh(row, span.end - span.start, left=span.start, height=0.8, color=color, hatch=hatch, edgecolor="white")
        if span.end - span.start > 0.012 * end * (1 + len(span.label)):
            middle, looks = (span.start + span.end) / 2, {"ha": "center", "va": "center", "fontsize": 7}
            axes.text(middle, row, span.label, bbox={"fc": "w", "ec": "none", "pad": 0.8}, **looks)
    axes.set_yticks(range(len(rows)), [f"rank {rank} · {lane}" for rank, lane in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, end * 1.01)
    axes.set_xlabel(unit)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)
    kinds = [kind for kind in KINDS if any(span.kind == kind for span in spans)]
    patches = [Patch(facecolor=KINDS[kind][0], hatch=KINDS[kind][1], edgecolor="white", label=kind) for kind in kinds]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False)
    return figure


def trace_events(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """Spans as events of the Chrome trace format: a process for each rank, a thread for each lane, microseconds.

    https://ui.perfetto.dev opens a file of {"traceEvents": these}.
    """
    spans = list(spans)
    lanes = sorted({(span.rank, span.lane) for span in spans})
    events: list[dict[str, Any]] = []
    for rank in sorted({span.rank for span in spans}):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
    for thread, (rank, lane) in enumerate(lanes):
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": thread, "args": {"name": lane}})
    for span in spans:
        where = {"pid": span.rank, "tid": lanes.index((span.rank, span.lane))}
        times = {"ts": 1e6 * span.start, "dur": 1e6 * (span.end - span.start)}
        events.append({"ph": "X", "name": span.label or span.kind, "cat": span.kind, **where, **times})
    return events
