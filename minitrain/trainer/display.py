"""The messages of a run while it goes on: who trains what, how far it is, how fast, and what went wrong.

All ranks know the same about a step, so rank 0 reports it. A bar shows each step where there is a terminal; lines stay,
and are all that a batch system's log gets. Also called callback, console logger.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minitrain.comm import World
from minitrain.comm.world import describe
from minitrain.composition.settings import Settings
from minitrain.composition.step import Report
from minitrain.data.sources import Source
from minitrain.data.tokenizer import BYTES
from minitrain.trainer import speed

SMOOTH = 0.9  # weight of the past in a speed


class Display:
    """The reports on rank 0.

    Args:
        world: This rank.
        settings: The run's.
        tell: Shows a text.

    Attributes:
        tokens_per_second: Recent speed, all ranks together; 0 before the first step.
    """

    def __init__(self, world: World, settings: Settings, tell: Callable[[str], None] = print):
        self.world, self.settings, self.tell = world, settings, tell
        self.tokens_per_second = 0.0
        self._about = describe(world)
        self._peak = speed.peak_flops(self._about["device"], settings.steps.dtype)
        self._last: Report | None = None

    def say(self, text: str) -> None:
        """Report something, once."""
        if self.world.rank == 0:
            self.tell(text)

    def begin(self, done: int, parameters: int, text: Source) -> None:
        """Report what is going to happen."""
        settings, about, size = self.settings, self._about, self.world.size
        steps, sizes = settings.steps, settings.model.sizes
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        unit = "bytes" if text.tokenizer.kind == BYTES else "tokens"
        left = f"steps {done + 1} to {steps.steps}" if done else f"{steps.steps} steps"
        self.say(
            f"{settings.model.preset}: {parameters:,} parameters, {steps.dtype} · {settings.layout} on {ranks} "
            f"({about['backend']}, {about['device']}) · {left} of {steps.batch} × {sizes.positions} {unit}\ntext {text}"
        )
        if done >= steps.steps:
            self.say(f"all of its {done} steps are done; --steps asks for more")

    def after(self, report: Report, seconds: float) -> None:
        """Note a step."""
        steps, past = self.settings.steps, self.tokens_per_second
        now = steps.batch * self.settings.model.sizes.positions / seconds
        self.tokens_per_second = SMOOTH * past + (1 - SMOOTH) * now if past else now
        self._last = report
        if report.skipped:
            self.say(
                f"a gradient overflowed float16: this step is left out, and the loss scale {report.scale:g} is halved"
            )

    def beside_bar(self) -> str:
        """The text next to the progress bar."""
        return "first step" if self._last is None else " · ".join([f"loss {self._last.loss:.3f}", *self._speeds()])

    def evaluated(self, done: int, validation: float) -> None:
        """Report a step after which the held-out text was evaluated."""
        assert self._last is not None
        losses = [f"loss {self._last.loss:.3f}", f"held out {validation:.3f}", f"norm {self._last.norm:.2f}"]
        self.say(f"step {done:>5}: {', '.join([*losses, *self._speeds()])}")

    def utilisation(self) -> float | None:
        """Recent model FLOP utilisation; None where the peak is not known."""
        if self._peak is None:
            return None
        model, steps = self.settings.model, self.settings.steps
        token = speed.model_flops(model, steps) / (steps.batch * model.sizes.positions)
        return token * self.tokens_per_second / (self.world.devices * self._peak)

    def _speeds(self) -> list[str]:
        utilisation = self.utilisation()
        return [
            f"{self.tokens_per_second:,.0f} tokens/s",
            *([] if utilisation is None else [f"MFU {utilisation:.0%}"]),
            f"{speed.memory(self.world) / 1e9:.2f} GB of memory",
        ]

    @contextmanager
    def notes(self) -> Iterator[None]:
        """Show warnings as notes: they are for the reader, not for the author of the line that they come from."""

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            self.say(f"note: {message}")

        with warnings.catch_warnings():
            warnings.simplefilter("once", UserWarning)
            warnings.showwarning = show
            yield
