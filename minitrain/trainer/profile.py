"""Where a step's time goes: data, forward, backward, each axis's communication, optimizer.

**Idea.** At every moment a rank does one thing. So each part of a step, and each call that communicates, says when it
begins and ends; nested parts are subtracted from the surrounding ones; and the parts add up to the step.

**Source.** Graham, Kessler & McKusick 1982, "gprof", §4, which separates a routine's own time from that of the routines
it calls.
**Sent.** At the end each rank's sums, to be shown side by side.
**Cost.** Reading the clock twice for each part, and a wait for the GPU.
Also called timers (Megatron-LM), `wall_clock_breakdown` (DeepSpeed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from minitrain.collectives.all_to_all import Carrier
from minitrain.comm import World
from minitrain.comm.comm import Collectives
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Handle
from minitrain.comm.timeline import Span
from minitrain.composition.settings import Layout
from minitrain.composition.step import AxisCollectives
from minitrain.pipeline_parallel.full.actions import Action
from minitrain.watch.observers import Communication, Watch

# part -> how the table calls it, and its kind on the timeline; in the order of the table.
PARTS = {
    "data": ("data", "compute"),
    "forward": ("forward", "forward"),
    "backward": ("backward", "backward"),
    "tp": ("communication along tp", "communicate"),
    "cp": ("communication along cp", "communicate"),
    "ep": ("communication along ep", "communicate"),
    "pipeline": ("communication along pp, waiting for stages", "receive"),
    "dp": ("communication along dp", "communicate"),
    "gradients": ("gradients to their places", "compute"),
    "norm": ("norm and loss of all ranks", "communicate"),
    "optimizer": ("clipping and optimizer", "optimizer"),
    "rest": ("the rest", "wait"),
}
ON_GPU = 50  # one of this many steps is measured


class Profile:
    """The parts of this rank's steps, whose timeline gets the spans of the last measured one.

    The first step is not measured: it allocates, and compiles.
    """

    def __init__(self, world: World):
        self.seconds = dict.fromkeys(PARTS, 0.0)  # of each part, summed over the measured steps
        self.steps = 0  # that were measured
        self._world, self._left = world, 1
        self._before = len(world.timeline.spans)
        self._stack: list[str] = []  # the parts that are open; backward's threads come one at a time
        self._since = 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step."""
        self._left -= 1
        if self._left >= 0:
            yield
            return
        self._left = ON_GPU - 1 if self._world.device.type == "cuda" else 0
        # One step is kept, or the spans of a long run would fill the memory.
        del self._world.timeline.spans[self._before :]
        self._open("rest")
        Communication.observers.append(self._message)
        try:
            yield
        except BaseException:
            # The parts that the error has left open would get the time of what follows.
            self._stack.clear()
            raise
        finally:
            Communication.observers.remove(self._message)
        self._close()
        self.steps += 1

    def timer(self, part: str) -> AbstractContextManager[Any]:
        """Around a part of a step; outside a measured step it does nothing."""
        return self._opened(part) if self._stack else nullcontext()

    def watch(self, action: Action) -> AbstractContextManager[Any]:
        return self.timer("forward" if action.kind == "F" else "backward")

    def _message(self, communication: Communication) -> Watch | None:
        """Watch messages along cp, which attention sends by itself, and waits for in the middle of its work."""
        group = communication.group
        return _Waiting(self) if group is not None and group.group_desc == "mesh_cp" else None

    def collectives(self, layout: Layout) -> AxisCollectives:
        """torch's collectives, timed along axes of more than one rank."""
        dp, tp, ep = AxisCollectives()
        return AxisCollectives(
            # An axis of one rank sends nothing, so there is nothing to time.
            Timed(dp, "dp", self) if layout.dp * layout.cp > 1 else dp,
            Timed(tp, "tp", self) if layout.tp > 1 else tp,
            timed_carrier(ep, self) if layout.ep > 1 else ep,
        )

    @contextmanager
    def _opened(self, part: str) -> Iterator[None]:
        self._open(part)
        try:
            yield
        finally:
            if self._stack:  # an error may have ended the step
                self._close()

    def _open(self, part: str) -> None:
        # The time until here belongs to the part around this one.
        self._charge()
        self._stack.append(part)

    def _close(self) -> None:
        self._charge()
        self._stack.pop()

    def _charge(self) -> None:
        """The time since the last boundary belongs to the innermost open part."""
        # On a GPU work is only queued, so wait until it is done. That forbids overlap, and so only some steps are
        # measured there.
        self._world.timeline.settle()
        now = self._world.timeline.now()
        if self._stack:
            part = self._stack[-1]
            self.seconds[part] += now - self._since
            self._world.timeline.record(part, PARTS[part][1], "step", self._since, now)
        self._since = now

    def gather(self) -> list[dict[str, float]]:
        """Each rank's seconds in a step by part; every rank calls it."""
        mine = {part: seconds / max(1, self.steps) for part, seconds in self.seconds.items()}
        return gather_objects(mine)

    def spans(self) -> list[Span]:
        """The spans of the last measured step on all ranks; every rank calls it."""
        return [span for spans in gather_objects(self._world.timeline.spans[self._before :]) for span in spans]


class _Waiting(Watch):
    """The waiting for one message is part "cp" of a step."""

    def __init__(self, profile: Profile):
        self._profile, self._timer = profile, profile.timer("cp")

    def waits(self) -> None:
        # Anew for each wait, because the step may not be a measured one.
        self._timer = self._profile.timer("cp")
        self._timer.__enter__()

    def ends(self) -> None:
        self._timer.__exit__(None, None, None)


class Timed:
    """Collectives whose calls, and the waiting for them, are `part` of a step."""

    def __init__(self, collectives: Any, part: str, profile: Profile):
        self.collectives, self.part, self.profile = collectives, part, profile

    def all_reduce(self, *arguments: Any, **options: Any) -> Handle:
        return self._call(self.collectives.all_reduce, *arguments, **options)

    def reduce_scatter(self, *arguments: Any, **options: Any) -> Handle:
        return self._call(self.collectives.reduce_scatter, *arguments, **options)

    def all_gather(self, *arguments: Any, **options: Any) -> Handle:
        return self._call(self.collectives.all_gather, *arguments, **options)

    def broadcast(self, *arguments: Any, **options: Any) -> Handle:
        return self._call(self.collectives.broadcast, *arguments, **options)

    def _call(self, verb: Callable[..., Handle], *arguments: Any, **options: Any) -> Handle:
        with self.profile.timer(self.part):
            return _TimedHandle(verb(*arguments, **options), self)


class _TimedHandle(Handle):
    """A communication under way; the time spent waiting for it is recorded."""

    def __init__(self, handle: Handle, timed: Timed):
        super().__init__()
        self._handle, self._timed = handle, timed

    def wait(self) -> Tensor | None:
        with self._timed.profile.timer(self._timed.part):
            return self._handle.wait()


def timed_carrier(carrier: Carrier, profile: Profile) -> Carrier:
    """A carrier of tokens whose calls are the part "ep" of a step."""

    def carry(*arguments: Any, **options: Any) -> None:
        with profile.timer("ep"):
            carrier(*arguments, **options)

    return carry


def table(ranks: list[dict[str, float]]) -> Any:
    """The parts of a step as a rich table: milliseconds on average over ranks, share, and how far ranks differ.

    Time in a communication includes waiting for late ranks. A rank that shows much of it may be the fast one.
    """
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, title="where a step's time went", title_justify="left")
    made.add_column("part")
    for head in ("ms", "share", "least, rank", "most, rank"):
        made.add_column(head, justify="right")
    total = sum(sum(parts.values()) for parts in ranks) / len(ranks)
    for part, (name, _) in PARTS.items():
        each = [parts[part] for parts in ranks]
        mean = sum(each) / len(each)
        if mean and total:
            # Means hide a late rank; the ranks at both ends show it.
            low, high = (pick(range(len(each)), key=each.__getitem__) for pick in (min, max))
            ends = [f"{1e3 * each[rank]:,.1f}, {rank:>2}" for rank in (low, high)] if len(each) > 1 else ["", ""]
            made.add_row(name, f"{1e3 * mean:,.1f}", f"{mean / total:.1%}", *ends)
    made.add_section()
    made.add_row("a step", f"{1e3 * total:,.1f}", "100.0%", "", "")
    return made


_: type[Collectives] = Timed  # it can be passed wherever collectives can
