"""From training to serving: another process answers with a table's rows while training goes on changing them.

**Idea.** A batch changes thousands of rows of billions. So the trainer writes the table once, and then, as often as it
likes, only the rows that have changed since: a *version*, in a file of its own. Whoever serves applies the versions in
their order, each whole or not at all. A file gets its name only when all of it is on the disk, and a checksum finds one
that was damaged later.

**Source.** Liu et al. 2022, "Monolith: real time recommendation system with collisionless embedding table", §2.2.2:
they synchronize changed rows every minute, and the dense part, which changes slowly, once a day.
**Sent.** Nothing between ranks: versions travel as files.
**Cost.** `minitrain.costs.serving.version_bytes`: 8 + dw bytes for each row that has changed.
Also called incremental parameter synchronization, online serving, delta updates.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import warnings
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from minitrain.recommender.hash_table import Index
from minitrain.recommender.hashing import start
from minitrain.recommender.tables import Table

_NAME = re.compile(r"version-(\d{12})(?:-after-(\d{12}))?")
_MAGIC = b"rows-1\0\0"
# Version, the one it comes after (−1: none, all rows are there), elements of a row, changed rows, evicted rows, the
# seed and the scale of first values, and one for later.
_HEAD = struct.Struct("<qqqqqqdq")


class Publisher:
    """Writes versions of a server's shard of a table into a folder for these alone, which is made if needed."""

    def __init__(self, table: Table, folder: str | Path):
        self.table, self.folder = table, Path(folder)
        self._version = self._updates = -1  # of the last version
        self._evicted: list[Tensor] = []

    def publish(self, version: int, full: bool = False) -> Path:
        """Write what has changed since the last version; all rows if there was none, or with `full`.

        Full versions remove the files of earlier ones, which nobody needs any more. A trainer that has started again
        writes one first.

        Raises:
            ValueError: `version`, such as the step, is not larger than the number of every version in the folder.
            OSError: It could not be written, for instance on a full disk. Earlier versions stay.
        """
        earlier = _versions(self.folder)
        newest = max((number for number, _, _ in earlier), default=-1)
        if version <= newest:
            raise ValueError(f"version={version} is not above {newest}, which is in {self.folder}; use {newest + 1}")
        full = full or self._version < 0
        ids, rows = self.table.contents() if full else self.table.changed(self._updates)
        gone = torch.cat(self._evicted) if self._evicted and not full else ids[:0]
        gone = gone[~torch.isin(gone, ids)]  # one that has come back is among the changed
        path = self.folder / _name(version, -1 if full else self._version)
        _write(path, version, -1 if full else self._version, self.table, ids, rows, gone)
        self._version, self._updates, self._evicted = version, self.table.updates, []
        if full:
            for _, _, old in earlier:
                old.unlink(missing_ok=True)
        return path

    def evict(self, age: int) -> int:
        """Drop the rows that none of the last `age` ≥ 1 updates had, here and in the next version; returns how many."""
        self._evicted.append(self.table.evict(age))
        return len(self._evicted[-1])


class Replica:
    """The rows of one version at a time, for a process that serves them; it needs no trainer and no other rank.

    `refresh` and `lookup` are for one thread: then each answer is of one version.

    Args:
        folder: Where a `Publisher` writes.

    Attributes:
        version: Of the rows; −1 before the first one was read.
        damaged: The file of which the next version would have come; None if there is none.
    """

    def __init__(self, folder: str | Path):
        self.folder, self.version = Path(folder), -1
        self.damaged: Path | None = None
        self._index, self._rows = Index(), torch.empty(0, 0)
        self._first = 0, 0.0  # seed and scale of the rows that no version has had

    def __len__(self) -> int:
        """Rows of this version."""
        return self._index.count

    def refresh(self) -> int:
        """Go on to the newest version that is whole; returns its number.

        A damaged file is told once, in a warning. Then the version before it stays until a full one comes.
        """
        while path := self._next():
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue  # a full version has come in its place
            if (problem := self._apply(content)) is not None:
                if path != self.damaged:
                    warnings.warn(f"{path} is damaged ({problem}): serving version {self.version}", stacklevel=2)
                self.damaged = path
                break
            self.damaged = None
        return self.version

    def lookup(self, ids: Int64[Tensor, " ids"]) -> Float32[Tensor, "ids dimension"]:
        """The rows of these ids; those that the trainer has not got have their first values."""
        if self.version < 0:
            raise RuntimeError(f"{self.folder} had no version yet; publish one, then refresh()")
        numbers = self._index.find(ids)
        seed, scale = self._first
        rows = start(ids, seed, self._rows.shape[1], scale)
        rows[numbers >= 0] = self._rows[numbers[numbers >= 0]]
        return rows

    def contents(self) -> tuple[Int64[Tensor, " rows"], Float32[Tensor, "rows dimension"]]:
        """All ids of this version, ascending, and their rows; copies."""
        ids, order = self._index.ids.sort()
        return ids, self._rows[order]

    def _next(self) -> Path | None:
        """The file of the version to read next."""
        later = [each for each in _versions(self.folder) if each[0] > self.version]
        changes = [path for _, before, path in later if before == self.version]
        full = [path for _, before, path in later if before < 0]
        return (full[-1:] or changes or [None])[0]

    def _apply(self, content: bytes) -> str | None:
        """Take over a version; what is wrong with it, None if it is whole."""
        size = len(_MAGIC) + 32 + _HEAD.size
        if len(content) < size or not content.startswith(_MAGIC):
            return "it has no head"
        checksum, rest = content[len(_MAGIC) :][:32], content[len(_MAGIC) + 32 :]
        if hashlib.sha256(rest).digest() != checksum:
            return "its checksum does not match"
        version, before, dimension, changed, evicted, seed, scale, _ = _HEAD.unpack_from(rest)
        body = torch.frombuffer(bytearray(rest), dtype=torch.uint8)[_HEAD.size :]
        parts = body.split([8 * changed, 8 * evicted, 4 * dimension * changed])
        ids, gone, rows = parts[0].view(torch.int64), parts[1].view(torch.int64), parts[2].view(torch.float32)
        if before < 0:
            self._index, self._rows = Index(), torch.empty(0, dimension)
        elif evicted:
            self._drop(gone)
        numbers, new = self._index.add(ids)
        self._rows = torch.cat([self._rows, torch.empty(len(new), dimension)])
        self._rows[numbers] = rows.view(changed, dimension)
        self.version, self._first = version, (seed, scale)
        return None

    def _drop(self, gone: Tensor) -> None:
        kept = (~torch.isin(self._index.ids, gone)).nonzero().flatten()
        index = Index()
        index.add(self._index.ids[kept])
        self._index, self._rows = index, self._rows[kept]


def _name(version: int, before: int) -> str:
    return f"version-{version:012d}" + (f"-after-{before:012d}" if before >= 0 else "")


def _versions(folder: Path) -> list[tuple[int, int, Path]]:
    """Number, the number before (−1: full), and file of each version in a folder, ascending."""
    found = [(_NAME.fullmatch(path.name), path) for path in folder.glob("version-*")]
    return sorted((int(match[1]), int(match[2] or -1), path) for match, path in found if match)


def _write(path: Path, version: int, before: int, table: Table, ids: Tensor, rows: Tensor, gone: Tensor) -> None:
    head = _HEAD.pack(version, before, table.dimension, len(ids), len(gone), table.seed, table.scale, 0)
    rest = head + b"".join(part.cpu().contiguous().numpy().tobytes() for part in (ids, gone, rows))
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with part.open("wb") as file:
            file.write(_MAGIC + hashlib.sha256(rest).digest() + rest)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)  # a reader finds all of it, or nothing
    except OSError:
        part.unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
