"""The messages of a run while it goes on: who trains what, how far it is, how fast, and what went wrong.

All ranks know the same about a step, so rank 0 reports it. A bar shows each step where there is a terminal; lines stay,
and are all that a batch system's log gets. There is a line for the first step and the last, and every few seconds in
between; in a long run they are further apart, so that a day's log can still be read. Also called callback, console
logger.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitrain.comm import World
from minitrain.comm.terminal import shown
from minitrain.comm.world import describe
from minitrain.composition.settings import Settings
from minitrain.composition.step import Report
from minitrain.data.sources import Source
from minitrain.data.tokenizer import BYTES
from minitrain.trainer import speed

SMOOTH = 0.9  # weight of the past in a speed
PAUSE = 5.0, 60.0  # seconds between two lines: at least, and at most
PART = 0.02  # the pause as a part of the time so far, within these


class Display:
    """The reports on rank 0, which `tell` shows.

    Attributes:
        tokens_per_second: Recent speed, all ranks together; 0 before the first step.
    """

    def __init__(self, world: World, settings: Settings, tell: Callable[[str], None] = print):
        self.world, self.settings, self.tell = world, settings, tell
        self.tokens_per_second = 0.0
        self._about = describe(world)
        self._peak = speed.peak_flops(self._about["device"], settings.steps.dtype)
        self._last: Report | None = None
        self._first = self._shown = 0.0  # when the first step of these ranks was done, and when the last line was shown
        self._done = 0  # steps of the run at that moment

    def say(self, text: str) -> None:
        """Report something, once."""
        if self.world.rank == 0:
            # Names in data and settings may have characters that a terminal obeys.
            self.tell(shown(text))

    def begin(self, done: int, parameters: int, text: Source) -> None:
        """Report what is going to happen."""
        settings, about, size = self.settings, self._about, self.world.size
        steps, sizes = settings.steps, settings.model.sizes
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        unit = "bytes" if text.tokenizer.kind == BYTES else "tokens"
        # A folder of weights has told all of the model.
        load = settings.run.load
        model = Path(load).name if load and Path(load).is_dir() else settings.model.preset
        left = f"steps {done + 1} to {steps.steps}" if done else f"{steps.steps} steps"
        self.say(
            f"{model}: {parameters:,} parameters, {steps.dtype} · {settings.layout} on {ranks} "
            f"({about['backend']}, {about['device']}) · {left} of {steps.batch} × {sizes.positions} {unit}\ntext {text}"
        )
        if done >= steps.steps:
            self.say(f"all of its {done} steps are done; --steps asks for more")

    def after(self, done: int, report: Report, seconds: float) -> None:
        """Note a step, the `done`-th of the run, and show its line if one is due."""
        steps, past, now = self.settings.steps, self.tokens_per_second, time.monotonic()
        recent = steps.batch * self.settings.model.sizes.positions / seconds
        self.tokens_per_second = SMOOTH * past + (1 - SMOOTH) * recent if past else recent
        begins, self._last = self._last is None, report
        if begins:
            # The first step also compiles and allocates, and says nothing about the time that is left.
            self._first, self._done = now, done
        if report.skipped and not report.spike:
            self.say(
                f"a gradient overflowed float16: this step is left out, and the loss scale {report.scale:g} is halved"
            )
        # Rarer in a long run, so that the log of a day can still be read.
        least, most = PAUSE
        due = now - self._shown >= min(most, max(least, PART * (now - self._first)))
        if begins or due or done == steps.steps:
            self._shown = now
            self.say(self._line(done, now))

    def _line(self, done: int, now: float) -> str:
        """A step in one line: loss, norm of the gradient before it is clipped, speed, and the time that is left."""
        assert self._last is not None
        total = self.settings.steps.steps
        parts = [f"loss {self._last.loss:.3f}", f"norm {self._last.norm:.2f}", *self._speeds()]
        if self._done < done < total:
            # With what happened between steps, too: looks at the held-out text, and checkpoints.
            parts.append(f"{duration((total - done) * (now - self._first) / (done - self._done))} left")
        return f"step {done:>{len(str(total))}} of {total}: {' · '.join(parts)}"

    def beside_bar(self) -> str:
        if self._last is None:
            return "first step"
        return " · ".join([f"loss {self._last.loss:.3f}", *self._speeds(), self._memory()])

    def evaluated(
        self, done: int, validation: float, by_source: Mapping[str, float] | None = None, bits: float | None = None
    ) -> None:
        """Report the mean loss on the held-out text: also of each source if there are several, and in bits per byte."""
        each = ", ".join(f"{name} {loss:.3f}" for name, loss in (by_source or {}).items())
        parts = [f"loss {validation:.3f}" + (f" ({each})" if each else "")]
        parts += [] if bits is None else [f"{bits:.3f} bits per byte"]
        self.say(f"held out, after step {done}: {' · '.join([*parts, self._memory()])}")

    def utilization(self) -> float | None:
        """Recent model FLOP utilization; None where the peak is not known."""
        if self._peak is None:
            return None
        model, steps = self.settings.model, self.settings.steps
        token = speed.model_flops(model, steps) / (steps.batch * model.sizes.positions)
        return token * self.tokens_per_second / (self.world.devices * self._peak)

    def _speeds(self) -> list[str]:
        utilization = self.utilization()
        return [
            f"{self.tokens_per_second:,.0f} tokens/s",
            *([] if utilization is None else [f"MFU {utilization:.0%}"]),
        ]

    def _memory(self) -> str:
        return f"{speed.memory(self.world) / 1e9:.2f} GB of memory"


@contextmanager
def notes(say: Callable[[str], None]) -> Iterator[None]:
    """Show warnings as notes: they are for the reader, not for the author of the line that they come from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        say(f"note: {message}")

    with warnings.catch_warnings():
        # Once: the same warning in each step would fill the log.
        warnings.simplefilter("once", UserWarning)
        warnings.showwarning = show
        yield


def duration(seconds: float) -> str:
    """A time in its two largest units: "48 s", "1 min 05 s", "2 h 10 min", "3 d 04 h"."""
    whole = round(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {smaller}"
    return f"{whole} s"


def printable(text: bytes) -> str:
    """A text that a terminal shows but does not obey: control characters and anything that is not text become �."""
    return shown(text.decode(errors="replace"))
