"""Checksums of a run's tensors, step by step, and where those of two runs part (`minitrain.craft.first_difference`).

Each rank writes a file of its own, of the shards that it has. So runs can be compared tensor by tensor if they have the
same layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import torch

from minitrain.composition.step import Report, Training
from minitrain.craft.first_difference import fingerprint, first_difference

FOLDER = "fingerprints"


class Fingerprints:
    """This rank's file in a run's folder; what it has of steps after the `done` first ones is cut off."""

    def __init__(self, folder: Path, training: Training, rank: int, done: int = 0):
        self.training = training
        self.path = path_of(folder, rank)
        self.path.parent.mkdir(exist_ok=True)
        # "a+" keeps the earlier steps, which a run that goes on needs.
        self._file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115  open as long as the run
        self.cut(done)

    def cut(self, done: int) -> None:
        """Cut off what comes after these steps."""
        self._file.seek(0)
        kept = [*takewhile(lambda line: int(line.split()[0]) <= done, self._file)]
        self._file.seek(0)
        self._file.truncate()
        self._file.writelines(kept)

    def write(self, step: int, report: Report) -> None:
        """A step's lines: what forward has used, what it has made, and backward's way through the layers."""
        gradients = self.training.gradients
        gradients.wait()
        # In the order in which they are computed, so that the first that differs is nearest to the cause.
        for name, piece in gradients.parameter_pieces():
            self._write(step, f"parameter {name}", piece)
        self._write(step, "loss", torch.tensor(report.loss, dtype=torch.float64))
        for name, piece in reversed([*gradients.gradient_pieces()]):
            self._write(step, f"gradient {name}", piece)
        self._file.flush()

    def _write(self, step: int, name: str, tensor: torch.Tensor) -> None:
        self._file.write(f"{step} {name} {fingerprint(tensor)}\n")

    def close(self) -> None:
        self._file.close()


def path_of(folder: Path, rank: int) -> Path:
    return folder / FOLDER / f"rank-{rank:04d}.txt"


def lines(path: Path) -> Iterator[str]:
    """Of a file, without a last line that was cut short."""
    with open(path, encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield line.rstrip("\n")


def where_they_part(one: Path, other: Path, ranks: int) -> tuple[int, str, int] | None:
    """The first step in which two runs differ, the tensor, and the rank; None if they do not in the steps of both."""
    found = []
    for rank in range(ranks):
        files = [path_of(folder, rank) for folder in (one, other)]
        if missing := next((path for path in files if not path.is_file()), None):
            raise ValueError(f"{missing} is missing; run with --fingerprints from the first step on")
        both = [[*lines(path)] for path in files]
        # Of the run that has ended earlier: no more can be compared.
        last = min((int(log[-1].split()[0]) for log in both if log), default=0)
        if difference := first_difference(*([line for line in log if int(line.split()[0]) <= last] for log in both)):
            found.append((*difference, rank))
    return min(found, key=lambda each: (each[0], each[2]), default=None)
