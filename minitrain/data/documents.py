"""Documents of files: plain text, and JSON lines, also compressed. Binary files are left out and counted.

A document is a file of text, or the text field of a line of JSON. Whatever is read comes in pieces that can be read
apart, by several processes: a piece of a file has the lines that begin in it.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIECE = 16 << 20
"""Bytes of a file that are read by one process; a file is not cut where it is compressed."""

LONGEST = 1 << 20
"""Bytes of a plain text that make one document, about: longer files are cut at ends of lines."""

LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")


@dataclass(frozen=True)
class Files:
    """What was found at a path.

    Attributes:
        paths: Files with text, in sorted order of their paths.
        binary: How many files were left out since they hold no text.
    """

    paths: tuple[Path, ...]
    binary: int

    @classmethod
    def at(cls, path: Path, keep: Callable[[Path], bool] | None = None) -> Files:
        """The file at a path, or the files of a folder; hidden ones and empty ones are left out.

        Args:
            path: Of a file or a folder.
            keep: Whether to take a file, by its path within the folder; None takes those that are not hidden.

        Raises:
            FileNotFoundError: If there is nothing at the path.
            ValueError: If there is no text.
        """
        if not path.exists():
            raise FileNotFoundError(f"data={str(path)!r} is no file and no folder; use a path that exists")
        inside = [path]
        if path.is_dir():
            names = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()}
            inside = [names[name] for name in sorted(names) if (keep or is_visible)(Path(name))]
        found = [file for file in inside if file.stat().st_size]
        kept = tuple(file for file in found if not is_binary(file))
        if not kept:
            empty = len(inside) - len(found)
            raise ValueError(
                f"data={str(path)!r} has no text: {empty} empty and {len(found)} binary files; use another path"
            )
        return cls(kept, len(found) - len(kept))

    def pieces(self) -> list[Piece]:
        """All of it, in parts that can be read apart."""
        return [piece for path in self.paths for piece in _pieces(path)]


@dataclass(frozen=True)
class Piece:
    """The lines of a file that begin in [begin, end)."""

    path: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes that it takes on the disk."""
        return min(self.end, self.path.stat().st_size) - self.begin

    def documents(self, field: str = "text") -> Iterator[tuple[bytes, bool]]:
        """The documents, and of each whether it ends here: a long text comes in several parts.

        Args:
            field: Of a line of JSON, which has the text.

        Raises:
            ValueError: If a line is no JSON, or has no text in that field; names file and line.
        """
        if has_lines(self.path):
            for where, line in self._lines():
                if line.strip():
                    yield _text(line, field, f"{self.path}, the line at byte {where}"), True
            return
        size, part, length = self.path.stat().st_size, [], 0
        end = self.begin
        for where, line in self._lines():
            part.append(line)
            length, end = length + len(line), where + len(line)
            if length >= LONGEST and end < size:
                yield b"".join(part), False
                part, length = [], 0
        if part:
            yield b"".join(part), end == size

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with opened(self.path) as file:
            if self.begin:
                file.seek(self.begin - 1)
                file.readline()  # of the piece before, unless a line begins exactly here
            where = file.tell() if self.begin else 0
            while where < self.end and (line := file.readline()):
                yield where, line
                where += len(line)


def _pieces(path: Path) -> list[Piece]:
    size = path.stat().st_size
    if path.suffix in (".gz", ".zst"):
        return [Piece(path, 0, 1 << 62)]
    return [Piece(path, begin, min(begin + PIECE, size)) for begin in range(0, size, PIECE)]


def opened(path: Path) -> io.BufferedIOBase:
    """A file to read, uncompressed.

    Raises:
        ValueError: If it is compressed with zstd and the package zstandard is not installed.
    """
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix != ".zst":
        return path.open("rb")
    if importlib.util.find_spec("zstandard") is None:
        raise ValueError(f"{path} needs the package zstandard: pip install zstandard")
    import zstandard

    return io.BufferedReader(zstandard.open(path, "rb"))


def has_lines(path: Path) -> bool:
    """Whether the file has a document on each line, as JSON."""
    return path.name.endswith(LINES)


def is_visible(path: Path) -> bool:
    """Whether neither a file nor a folder on its path is hidden."""
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def is_library_source(path: Path) -> bool:
    """A `.py` file of the standard library.

    Without installed packages. Without its tests, which are larger than all the rest and missing on some systems.
    Without files that describe the machine that Python was built on.
    """
    others = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
    built = any(part.startswith(("config-", "_sysconfigdata")) for part in path.parts)
    return path.suffix == ".py" and is_visible(path) and others.isdisjoint(path.parts) and not built


def is_binary(path: Path) -> bool:
    """Whether a file holds no text: a zero byte among its first 8,000, as git has it; compressed lines are text."""
    if has_lines(path):
        return False
    with path.open("rb") as file:
        return b"\0" in file.read(8000)


def _text(line: bytes, field: str, where: str) -> bytes:
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}, is no JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get(field), str):
        has = ", ".join(sorted(found)) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{where}, has no text in its field {field!r}; it has {has}")
    return found[field].encode(errors="replace")
