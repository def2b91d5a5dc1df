"""The recorder: every line that a rank runs in a technique's file, what its variables hold, and every message.

What a rank does is told as events, in their order: a line is about to run; a communication starts, is waited for, and
arrives; a function returns; the end. Each event has all that a reader sees at that moment. Python tells of lines
(`sys.settrace`), also within the hooks and functions that autograd calls, and the observers of communications tell of
messages. So nothing in a small form knows that it is recorded.
"""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from minitrain.player.memory import LARGEST, Memory, listed, storages
from minitrain.watch.calls import observe_calls
from minitrain.watch.observers import Communication, Watch

LEFT_OUT = ("self", "ctx", "group", "cls", "__class__", "training")
COMPREHENSIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")


@dataclass
class Scene:
    """What is played: a few lines of a technique, on tensors so small that a reader sees every number.

    Attributes:
        run: What is recorded.
        show: What is always on screen: tensors, modules (for their parameters), or functions that return a tensor.
        title: Of the page.
        look: What to look at, in a sentence or two.
        formula: What this rank sends, as a formula, and its value in bytes. None: nothing is predicted.
        modules: Modules whose lines are recorded besides the technique's.
        skip: Functions whose lines are not.
        hide: Variables that say nothing.
        keep: Variables that stay on screen while a function runs that does not have them.
        digits: Whether rank r begins with tensors of 10ʳ: then the digits of a sum say whose values are in it.
        work: For lines that contain a text: the ticks that they take, and the letter that the strip shows.
        phases: For functions, or lines that contain a text: the name of the phase that begins there.
        ask: For a line that contains a text: what to predict before it runs, and the names that answer it afterwards.
        names: Of a notebook's variables, those that its cell names.
    """

    run: Callable[[], Any]
    show: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    look: str = ""
    formula: tuple[str, float] | None = None
    modules: Sequence[str] = ()
    skip: Sequence[str] = ()
    hide: Sequence[str] = ()
    keep: Sequence[str] = ()
    digits: bool = False
    work: dict[str, tuple[int, str]] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    ask: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    names: Sequence[str] = ()


class Recorder:
    """Records this rank while it is open, and writes the events to a file whenever it waits, and at the end.

    Args:
        scene: What is recorded.
        files: Paths of the files whose lines are recorded.
        path: The file for the events; it has all events so far, also when the rank hangs and is killed.
    """

    def __init__(self, scene: Scene, files: Sequence[str], path: Path):
        self.scene, self.files, self.path = scene, list(files), path
        self.memory = Memory()
        self.events: list[dict[str, Any]] = []
        self.frames: list[FrameType] = []  # of the functions that are recorded, the innermost last
        self.receiving: dict[int, tuple[int, Any, Any]] = {}  # event -> storage, first byte, byte after the last
        self.counts: Counter[str] = Counter()
        self.sent = 0.0

    def __enter__(self) -> Recorder:
        # Then empty memory is filled with NaN, so that a reader sees what nobody has written.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Memory is freed by the last reference, at the same line in each run, and not at some time by the collector.
        gc.collect()
        gc.disable()
        observe_calls()
        Communication.observers.insert(0, self.communication)  # before the checks, which may refuse it
        self.memory.__enter__()
        sys.settrace(self.called)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        sys.settrace(None)
        self.memory.__exit__(None, None, None)
        Communication.observers.remove(self.communication)
        gc.enable()
        torch.use_deterministic_algorithms(False)
        left: dict[str, Any] = {}
        if error is not None:
            # The functions have returned by now; a reader wants to see where they were.
            while self.events and self.events[-1]["kind"] == "return":
                self.events.pop()
            left["error"] = str(error).strip().split("\n")[-1][:240]
        if self.events and (error is not None or self.scene.names):  # a cell leaves its variables behind
            left |= {part: self.events[-1][part] for part in ("stack", "names", "memory")}
        self.tell("end", **left)
        self.write()

    def write(self) -> None:
        self.path.write_text(json.dumps(self.events), encoding="utf-8")

    # What Python tells of lines.

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self.files or code.co_name in (*COMPREHENSIONS, *self.scene.skip):
            return None
        self.frames.append(frame)
        return self.traced

    def traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.tell("line")
        elif event == "return":
            told = self.tell("return")
            before = self.events[-2] if len(self.events) > 1 else {}
            # Where nothing is new, the caller's next line says it all.
            if all(told[part] == before.get(part) for part in ("names", "shown", "memory")):
                self.events.pop()
            self.frames.pop()
        return self.traced

    # What observers tell of messages.

    def communication(self, each: Communication) -> Watch:
        members = list(range(dist.get_world_size())) if each.group is None else dist.get_process_group_ranks(each.group)
        peer = None if each.peer is None else members[each.peer]
        me, verb, into = dist.get_rank(), each.verb, each.tensor if each.into is None else each.into
        ends = (me, peer) if verb == "send" else (peer, me)
        # Collectives have no names: the k-th of a group on one rank meets the k-th on the others.
        key = json.dumps(["all", members] if peer is None else ["message", *ends, each.tag, members])
        count = self.counts[f"{key} {verb if peer is not None else ''}"]
        self.counts[f"{key} {verb if peer is not None else ''}"] += 1
        with _disable_current_modes():
            place = self.memory.told(into.detach())
        self.sent += bytes_sent(each, members)
        about: dict[str, Any] = {"verb": verb, "peer": peer, "key": f"{key} {count}", "members": members}
        number = len(self.events)
        brings = verb != "receive" and each.tensor.numel() <= LARGEST
        self.tell(
            "starts", **about, into=place, brings=listed(each.tensor) if brings else None,
            rows=None if each.sizes is None else [list(map(int, part)) for part in each.sizes],
        )  # fmt: skip
        if verb != "send" and into.numel():
            first = into.storage_offset() * into.element_size()
            self.receiving[number] = (place["storage"], first, first + into.nbytes)
        return _Followed(self, number, about, each, into)

    # One event.

    def tell(self, kind: str, **more: Any) -> dict[str, Any]:
        """Append an event, with what a reader sees at this moment."""
        with torch.no_grad(), _disable_current_modes():
            shown = {name: told for name, value in self.shown() if (told := self.memory.told(value)) is not None}
            names = {} if not self.frames else self.names(self.frames[-1])
            for name in self.scene.keep:
                names |= next(({name: told[name]} for f in self.frames if name in (told := self.names(f))), {})
            seen = sorted(set(storages([shown, names, more.get("into")])))
            event = {
                "kind": kind,
                "stack": [[self.files.index(f.f_code.co_filename), f.f_lineno, title(f)] for f in self.frames],
                "names": names,
                "shown": shown,
                "memory": {each: self.memory.cells(each, self._arriving_in(each)) for each in seen},
                "held": self.memory.held(),
                "sent": self.sent,
                **more,
            }
        self.events.append(event)
        return event

    def _arriving_in(self, storage: int) -> list[tuple[Any, Any]]:
        return [(first, end) for number, first, end in self.receiving.values() if number == storage]

    def names(self, frame: FrameType) -> dict[str, Any]:
        """The variables of a function, and the attributes of its `self`."""
        own = {name: value for name, value in frame.f_locals.items() if not name.startswith(".")}
        if frame.f_code.co_name == "<module>":
            own = {name: value for name, value in own.items() if name in self.scene.names}
        if (me := own.get("self")) is not None:
            attributes = {**vars(me), **vars(me).get("_parameters", {})}
            own |= {f"self.{name}": value for name, value in attributes.items() if not name.startswith("_")}
        told = {}
        for name, value in own.items():
            hidden = name.removeprefix("self.") in (*LEFT_OUT, *self.scene.hide)
            if hidden or isinstance(value, (nn.Module, type)) or (value is None and name.startswith("self.")):
                continue
            for part, each in with_gradient(name, value):
                if (as_told := self.memory.told(each)) is not None:
                    told[part] = as_told
        return told

    def shown(self) -> Iterator[tuple[str, Any]]:
        """What is always on screen, by name."""
        for name, value in self.scene.show.items():
            if isinstance(value, nn.Module):
                for parameter, each in value.named_parameters():
                    yield from with_gradient(f"{name} {parameter}".strip(), each)
            else:
                yield from with_gradient(name, value() if callable(value) else value)


def with_gradient(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value, and of a leaf that has one, its gradient."""
    yield name, value
    if isinstance(value, Tensor) and value.is_leaf and value.grad is not None:
        yield f"{name}.grad", value.grad


def title(frame: FrameType) -> str:
    """A function's name with its class, or with the function around it."""
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name).replace("<locals>.", "")


def bytes_sent(each: Communication, members: Sequence[int]) -> float:
    """What a rank sends for a communication; for a collective, what a ring or pairs of ranks would."""
    size, ranks = each.tensor.nbytes, len(members)
    if each.verb == "all_to_all" and each.sizes and each.tensor.numel():
        rows = each.sizes[0]
        return size * (1 - rows[list(members).index(dist.get_rank())] / sum(rows))
    shares = {"send": 1, "all_gather": ranks - 1, "reduce_scatter": 1 - 1 / ranks, "all_reduce": 2 - 2 / ranks}
    return size * shares.get(each.verb, 0)


class _Followed(Watch):
    """One communication, from its start on."""

    def __init__(self, recorder: Recorder, number: int, about: dict[str, Any], each: Communication, into: Tensor):
        self.recorder, self.number, self.about, self.each, self.into = recorder, number, about, each, into

    def waits(self) -> None:
        if self.each.verb != "send":  # a send that gloo has taken is not waited for
            self.recorder.tell("waits", of=self.number, **self.about)
            self.recorder.write()

    def ends(self) -> None:
        recorder = self.recorder
        recorder.receiving.pop(self.number, None)
        if self.each.verb == "send":
            return
        with _disable_current_modes():
            place = recorder.memory.told(self.into.detach())
        recorder.memory.empty.pop(place["storage"], None)  # all of it is written now
        recorder.memory.settle()
        got = listed(self.into) if self.into.numel() <= LARGEST else None
        recorder.tell("arrives", of=self.number, **self.about, into=place, got=got)
