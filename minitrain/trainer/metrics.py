"""The records of a run: a line for each step, TensorBoard's files, and a picture of the loss.

Any tool can read a file of lines of JSON (jsonlines.org), and if a run is killed, all but the last line survives. A
step's line has about 150 bytes and is the same on all ranks, so rank 0 writes it. A resume cuts lines off: it writes
the lines that stay to a second file and then replaces the first with it. Also called logger, tracker.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from minitrain.comm.terminal import shown

if TYPE_CHECKING:
    # Here, since ranks that train need no matplotlib.
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "metrics.jsonl"


class Metrics:
    """The files of a run; make one on rank 0.

    A line of `metrics.jsonl` has the step (from 1), the loss and the held-out text's ("validation", where it was looked
    at) in nats per token, the gradient's norm before clipping, the learning rate, seconds, and tokens in a second; in
    float16 also the loss scale, and whether the step was skipped; of a mixture the loss of each source; the answers of
    probes. The first line, and the first after each resume, has the settings.

    Args:
        folder: The run's; it exists.
        settings: The content of the first line.
        done: Steps that the run has done: lines of later ones, from an attempt that was killed, are cut off.
        tensorboard: Write its event files too.

    Raises:
        ModuleNotFoundError: TensorBoard was asked for and is not installed.
    """

    def __init__(self, folder: Path, settings: dict[str, Any], done: int = 0, tensorboard: bool = False):
        self.path, self._beside = folder / NAME, folder / (NAME + ".unfinished")
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # `purge_step` hides what an attempt that was killed has written of later steps.
            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
        self._failed = False
        self._file: IO[str] | None = None
        try:
            kept = read(self.path) if done else []
            # Later steps are done again: an attempt that was killed had not saved them.
            kept = [line for line in kept if steps_at(line) <= done]
            self._replace([*kept, {"settings": settings} | ({"resumed at": done} if done else {})])
        except OSError as error:
            self._give_up(error)
            with suppress(OSError):
                self._beside.unlink(missing_ok=True)

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        """Begin the file with these lines; if killed meanwhile, the earlier file is unchanged."""
        self._beside.unlink(missing_ok=True)  # of an attempt that was killed; a link is not followed
        self._file = open(self._beside, "x", encoding="utf-8")  # noqa: SIM115  open as long as the run
        for line in lines:
            self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        # Before it takes the name, so that there is one complete file at every moment.
        os.fsync(self._file.fileno())
        os.replace(self._beside, self.path)  # a link is replaced, not its target

    def write(self, line: dict[str, Any]) -> None:
        """Add a line. A full disk does not end a run: a warning says so, and the run goes on without this file."""
        if self._file is not None:
            try:
                self._file.write(json.dumps(line) + "\n")
                # If the run is killed, no line but the one at hand is lost.
                self._file.flush()
                # Writing to a file that was removed raises no error.
                if not os.fstat(self._file.fileno()).st_nlink:
                    raise OSError("it has been removed, and what is written goes nowhere")
            except OSError as error:
                self._give_up(error)
        if self._board is not None and "step" in line:
            for name, value in line.items():
                for under, number in value.items() if isinstance(value, dict) else [("", value)]:
                    if name != "step" and isinstance(number, int | float):
                        self._board.add_scalar(f"{name}/{under}" if under else name, number, line["step"])

    def _give_up(self, error: OSError) -> None:
        warnings.warn(f"{self.path} is not written any more: {error}", stacklevel=3)
        file, self._file = self._file, None
        with suppress(OSError):  # what could not be written cannot be now
            if file is not None:
                file.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's file; no file has no lines. One that was cut short, or is none of ours, is left out."""
    if not path.is_file():
        return []
    lines = []
    # A last line that was cut within a letter must not hide the others.
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            lines.append(json.loads(line))
    return [line for line in lines if isinstance(line, dict) and type(steps_at(line)) is int]


def steps_at(line: Mapping[str, Any]) -> Any:
    """The steps that the run had done when it wrote a line."""
    return line.get("step", line.get("resumed at", 0))


def literal(name: str) -> str:
    """A name for a picture, where two dollar signs would make it a formula."""
    return shown(name).replace("$", r"\$")


def by_name(lines: Sequence[Mapping[str, Any]], kind: str) -> dict[str, list[tuple[int, float]]]:
    """Of what lines have under a word by name, such as the loss of each source: of each name, steps and values."""
    found: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for name, value in line.get(kind, {}).items():
            found.setdefault(name, []).append((line["step"], value))
    return found


def empty(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """A picture without curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained", facecolor="white")
    axes = figure.add_subplot(title=literal(title), xlabel=xlabel, ylabel=ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_sources(lines: Sequence[Mapping[str, Any]], title: str = "") -> Figure:
    """The loss of each source over the steps, by "sources" and "validation sources" in lines of `metrics.jsonl`."""
    figure, axes = empty(title, "steps", "loss, nats per token")
    held_out = by_name(lines, "validation sources")
    for number, (name, points) in enumerate(by_name(lines, "sources").items()):
        color = f"C{number}"
        axes.plot(*zip(*points, strict=True), color=color, alpha=0.3, lw=1)
        if name in held_out:
            axes.plot(*zip(*held_out[name], strict=True), "o-", color=color, markersize=4, label=literal(name))
    axes.legend(frameon=False, title="held out; pale: training")
    return figure


def draw_positions(line: Mapping[str, Any], title: str = "") -> Figure:
    """The loss on the held-out text at each position of a sequence, by "validation positions" in a line."""
    figure, axes = empty(title, "position in the sequence", "held-out loss, nats per token")
    for name, losses in line["validation positions"].items():
        axes.plot(losses, label=literal(name))
    axes.legend(frameon=False)
    return figure


def draw(lines: list[dict[str, Any]], mark: float, title: str = "") -> Figure:
    """The loss over the steps, that on the held-out text, and `mark`, what no table of token pairs gets below."""
    figure, axes = empty(title, "steps", "loss, nats per token")
    steps = [line for line in lines if "loss" in line]
    held_out = [line for line in steps if "validation" in line]
    axes.plot([line["step"] for line in steps], [line["loss"] for line in steps], color="#56B4E9", label="training")
    points = [line["step"] for line in held_out], [line["validation"] for line in held_out]
    axes.plot(*points, "o--", color="#D55E00", label="held out")
    axes.axhline(mark, color="#999999", linestyle=":", label="best table of token pairs, held out")
    for line in lines:
        if "resumed at" in line:
            axes.axvline(line["resumed at"], color="#CCCCCC", linewidth=1)
    axes.legend(frameon=False)
    return figure
