"""Sources and their shares as a command line names them: `--mix code=0.3:path math=0.7:path`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minitrain.data.documents import has_lines
from minitrain.data.manifest import Manifest, is_prepared

BLOCK = 1000  # samples in which every source has exactly its share


@dataclass(frozen=True)
class Share:
    """A source in a mixture: what the command line writes as code=0.3:path."""

    name: str
    weight: float  # part of the samples, with three decimals at most
    data: str  # as `--data` takes it


def parse(mix: Sequence[str]) -> list[Share]:
    """The shares that a command line names, each as name=weight:data; names differ, and weights sum to 1."""
    shares = []
    for text in mix:
        name, equals, rest = text.partition("=")
        number, colon, data = rest.partition(":")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not (name and equals and colon and data and 0 < weight <= 1):
            raise ValueError(f"mix={text!r} is no name=weight:data with a weight in (0, 1], such as code=0.3:src")
        if abs(weight * BLOCK - round(weight * BLOCK)) > 1e-9:
            raise ValueError(f"mix={text!r} has a weight of more than three decimals; round it")
        shares.append(Share(name, weight, data))
    names = [share.name for share in shares]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"mix names {min(twice)!r} twice; give each source a name of its own")
    if sum(round(share.weight * BLOCK) for share in shares) != BLOCK:
        total = sum(share.weight for share in shares)
        raise ValueError(f"mix has weights that sum to {total:.4g}, not 1; change {', '.join(names)}")
    return shares


def vocabulary_of(data: str, mix: Sequence[str], preset: int) -> int:
    """The vocabulary of a model that is told none: that of prepared data, or the preset's if it is large enough."""
    paths = [Path(share.data) for share in parse(mix)] if mix else [Path(data)]
    if prepared := [Manifest.read(path).vocabulary for path in paths if str(path) != "." and is_prepared(path)]:
        return max(prepared)
    marked = any(has_lines(file) for path in paths for file in (path.rglob("*") if path.is_dir() else [path]))
    return max(preset, 257 if marked else 256)
