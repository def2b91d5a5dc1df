"""How the parent shows what ranks print: `Live` for programs, `Grouped` for cells.

Ranks print at the same time, so it is a matter of chance which text arrives first. `Live` shows a line as it comes.
`Grouped` waits until the cell has ended, so that the same cell shows the same lines in the same order in every run.
"""

from __future__ import annotations

import difflib
import itertools
import sys
import time
from dataclasses import dataclass
from typing import Any

PATIENCE = 2.0  # seconds for which a line of a cell waits for the same line of other ranks


def stream_of(name: str) -> Any:
    """The parent's current `stdout` or `stderr`: notebooks and pytest replace them."""
    return sys.stderr if name == "stderr" else sys.stdout


def screens(rank: int) -> tuple[bool, bool, str, str]:
    """What a rank should know of the parent's `stdout` and `stderr`: which is a terminal, and their encodings."""
    streams = [stream_of("stdout"), stream_of("stderr")]
    terminals = [rank == 0 and stream.isatty() for stream in streams]
    encodings = [getattr(stream, "encoding", None) or "utf-8" for stream in streams]
    return terminals[0], terminals[1], encodings[0], encodings[1]


def marked(who: str, text: str) -> str:
    """Text with `[who]` before each line; of a progress bar only its last state."""
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.rstrip("\n").split("\n")]
    return "".join(f"[{who}] {line}".rstrip() + "\n" for line in lines)


def write(name: str, text: str) -> None:
    stream_of(name).write(text)
    stream_of(name).flush()


class Live:
    """Rank 0 writes as if it were the parent (tables, progress bars); other ranks write lines marked `[rank r]`."""

    def __init__(self) -> None:
        self.unfinished: dict[tuple[int, str], str] = {}  # lines of other ranks that lack their end
        self.open = {"stdout": False, "stderr": False}  # whether rank 0 has left a line without its end

    def add(self, rank: int, name: str, text: str, place: Any = None) -> None:
        if rank == 0:
            write(name, text)
            self.open[name] = not text.endswith(("\n", "\r"))
            return
        text = self.unfinished.pop((rank, name), "") + text
        lines, newline, rest = text.rpartition("\n")
        if newline:
            self.show(rank, name, lines)
        if rest:
            self.unfinished[rank, name] = rest

    def flush(self, finished: bool) -> None:
        if finished:
            for (rank, name), text in sorted(self.unfinished.items()):
                self.show(rank, name, text)
            self.unfinished.clear()

    def show(self, rank: int, name: str, text: str) -> None:
        write(name, "\n" * self.open[name] + marked(f"rank {rank}", text))
        self.open[name] = False


@dataclass(frozen=True)
class Printed:
    """What one print statement of one rank printed."""

    name: str  # stdout or stderr
    text: str
    place: Any  # file and line of the statement
    at: float  # when it came in


class Grouped:
    """Shows side by side what the same statement of a cell printed on several ranks; equal texts share a line.

    Everything is shown when the cell has ended. In a cell that takes longer, a text is shown `PATIENCE` seconds after
    it was printed, so output of long cells streams, and ranks that reach a statement within that time still share it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.printed: dict[int, list[Printed]] = {rank: [] for rank in range(size)}

    def add(self, rank: int, name: str, text: str, place: Any) -> None:
        self.printed[rank].append(Printed(name, text, place, time.monotonic()))

    def flush(self, finished: bool) -> None:
        old = time.monotonic() - PATIENCE
        if not finished and all(texts[0].at > old for texts in self.printed.values() if texts):
            return
        slots = side_by_side(self.printed)
        due = [index for index, slot in enumerate(slots) if finished or any(one.at <= old for one in slot.values())]
        shown: list[tuple[str, str]] = []
        for slot in slots[: due[-1] + 1] if due else []:
            for rank in slot:
                self.printed[rank].pop(0)
            shown += self.groups(slot)
        for name, texts in itertools.groupby(shown, key=lambda one: one[0]):
            write(name, "".join(text for _, text in texts))  # at once: a notebook keeps every write as an output

    def groups(self, slot: dict[int, Printed]) -> list[tuple[str, str]]:
        """What one statement printed, as (stream, marked text), each different text once."""
        ranks: dict[tuple[str, str], list[int]] = {}
        for rank in sorted(slot):
            ranks.setdefault((slot[rank].name, slot[rank].text), []).append(rank)
        groups = []
        for (name, text), who in ranks.items():
            label = "all ranks" if len(who) == self.size > 1 else f"rank {','.join(map(str, who))}"
            groups.append((name, marked(label, text)))
        return groups


def side_by_side(printed: dict[int, list[Printed]]) -> list[dict[int, Printed]]:
    """Align the ranks' texts by the statement that printed them.

    Ranks run the same cell, so their lists name the same statements in nearly the same order. Where a rank prints more
    or less than others (`if rank == 0: print(...)`), the statements around still line up. Slots keep each rank's order.
    """
    slots: list[dict[int, Printed]] = []
    for rank, texts in printed.items():
        places = [next(iter(slot.values())).place for slot in slots]
        others = [text.place for text in texts]
        pairs = enumerate(zip(places, others, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(places), len(others)))  # nearly always all of them
        merged = [{**slot, rank: text} for slot, text in zip(slots[:same], texts[:same], strict=True)]
        matcher = difflib.SequenceMatcher(None, places[same:], others[same:], autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            ours, theirs = slots[same + a : same + b], texts[same + c : same + d]
            if kind == "equal":
                merged += [{**slot, rank: text} for slot, text in zip(ours, theirs, strict=True)]
            else:
                merged += ours + [{rank: text} for text in theirs]
        slots = merged
    return slots
