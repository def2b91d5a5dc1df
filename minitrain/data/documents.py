"""Documents of files: plain text, and JSON lines, also compressed. What is no text is left out and counted.

A document is a file of text, or the text field of a line of JSON. Whatever is read comes in pieces that can be read
apart, by several processes: a piece of a file has the lines that begin in it. Memory stays bounded however long a line
is: plain text is cut, and a line of JSON that is far too long is refused.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import json
import os
import sysconfig
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PIECE = 16 << 20  # bytes of a file that are read by one process; a file is not cut where it is compressed
LONGEST = 1 << 20  # bytes of a plain text that make one document, about: longer files are cut at ends of lines
TAIL = 64 << 10  # bytes that a part of it may have more, to end with a line
LINE = 64 << 20  # bytes of a line of JSON, at most: it is read whole
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
OTHERS = {"site-packages", "dist-packages", "test", "tests", "idle_test"}  # folders beside the standard library
NAMED = 5  # notes that are told; of others, how many there are


@dataclass(frozen=True)
class Files:
    """What was found at a path."""

    paths: tuple[Path, ...]  # files with text, in sorted order
    binary: int  # files that were left out since they hold no text
    notes: Mapping[str, int] = field(default_factory=dict)  # what else was left out, in words, and how much of it

    @classmethod
    def at(cls, path: Path, keep: Callable[[Path], bool] | None = None, skip: Collection[str] = ()) -> Files:
        """The file at a path, or the files of a folder; hidden ones and empty ones are left out, and links.

        A link in a folder leads to a file that is there already, or to one elsewhere that nobody asked for.

        Args:
            keep: Whether to take a file, by its path within the folder; None takes those that are not hidden.
            skip: Names of folders that are not looked into.

        Raises:
            FileNotFoundError, ValueError: There is nothing at the path, or no text.
        """
        if not path.exists():
            raise FileNotFoundError(f"data={str(path)!r} is no file and no folder; use a path that exists")
        inside, links = [path], 0
        if path.is_dir():
            names: list[str] = []  # as text: a Python installation has tens of thousands
            for folder, folders, files in os.walk(path):
                folders[:] = [name for name in folders if name not in skip]
                above = folder.removeprefix(str(path)).strip("/")
                names += [f"{above}/{name}" if above else name for name in (*folders, *files)]
            asked = [path / name for name in sorted(names) if (keep or is_visible)(Path(name))]
            links = sum(each.is_symlink() for each in asked)
            inside = [each for each in asked if each.is_file() and not each.is_symlink()]
        found = [file for file in inside if file.stat().st_size]
        kept = tuple(file for file in found if not is_binary(file))
        if not kept:
            nothing = f"{len(inside) - len(found)} empty and {len(found)} binary files"
            nothing += f", and {links} links, which are not followed" if links else ""
            raise ValueError(f"data={str(path)!r} has no text: {nothing}; use another path")
        notes = {f"links in {path} are left out": links} if links else {}
        return cls(kept, len(found) - len(kept), notes)

    @classmethod
    def of_library(cls) -> Files:
        """The source of Python's standard library."""
        return cls.at(Path(sysconfig.get_path("stdlib")), is_library_source, OTHERS)

    def pieces(self) -> list[Piece]:
        """All of it, in parts that can be read apart."""
        found = []
        for path in self.paths:
            if is_compressed(path):
                found.append(Piece(path, 0, 1 << 62))
            else:
                size = path.stat().st_size
                found += [Piece(path, begin, min(begin + PIECE, size)) for begin in range(0, size, PIECE)]
        return found


def described(binary: int, notes: Mapping[str, int]) -> str:
    """What was left out of a text or changed in it, to be told after the number of its files."""
    said = [f"{count:,} {what}" for what, count in [*notes.items()][:NAMED]]
    more = [f"{len(notes) - NAMED} more such notes in the manifest"] if len(notes) > NAMED else []
    left_out = f", {binary:,} binary ones left out" if binary else ""
    return "; ".join([left_out, *said, *more]) if said else left_out


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

    @property
    def seekable(self) -> bool:
        """Whether it can be read from the middle."""
        return not is_compressed(self.path)

    def passages(self, size: int) -> list[Piece]:
        """The piece in parts of so many bytes."""
        end = self.begin + self.size
        if not self.seekable:
            return [self]
        return [Piece(self.path, begin, min(begin + size, end)) for begin in range(self.begin, end, size)]

    def documents(self, field: str = "text") -> Iterator[tuple[bytes, bool]]:
        """The documents, and of each whether it ends here: a long text comes in several parts.

        Raises:
            ValueError: A line is no JSON, or has no text in its `field`; names file and line.
        """
        with opened(self.path) as file:
            if has_lines(self.path):
                for where, line in self._lines(file):
                    if line.strip():
                        yield _text(line, field, f"{self.path}, the line at byte {where}"), True
                return
            size = self.path.stat().st_size
            place, end = _next_line(file, self.begin, size), _next_line(file, self.end, size)
            while place < end:
                file.seek(place)
                part = file.read(min(LONGEST, end - place))
                if not part.endswith(b"\n"):
                    part += file.readline(min(TAIL, end - place - len(part)))
                if not part:
                    raise ValueError(f"{self.path} became shorter while it was read")
                if place + len(part) < end and not part.endswith(b"\n"):  # a line that is far too long
                    part = part[: cut(part)]
                place += len(part)
                yield part, place == size

    def _lines(self, file: io.BufferedIOBase) -> Iterator[tuple[int, bytes]]:
        where = 0
        if self.begin:
            file.seek(self.begin - 1)
            while (line := file.readline(LINE)) and not line.endswith(b"\n"):
                pass  # of the piece before, unless a line begins exactly here
            where = file.tell()
        while where < self.end and (line := file.readline(LINE)):
            if len(line) == LINE and not line.endswith(b"\n"):
                raise ValueError(
                    f"{self.path}, the line at byte {where}, has more than {LINE / 1e6:.0f} MB; each line must be the "
                    "JSON of one document"
                )
            yield where, line
            where += len(line)


def _next_line(file: io.BufferedIOBase, place: int, size: int) -> int:
    """Where the first line at or after a place begins; where there is none for long, a word or a letter does."""
    if place == 0 or place >= size:
        return min(place, size)
    file.seek(place - 1)
    block = file.read(LONGEST)
    newline = block.find(b"\n")
    return place + newline if newline >= 0 else place - 1 + cut(block, from_end=False)


def cut(text: bytes, from_end: bool = True) -> int:
    """Where to cut a text without lines: before its last space (or the first one), or else between two letters."""
    space = text.rfind(b" ", 1) if from_end else text.find(b" ", 1)
    if space > 0:
        return space
    places = range(len(text) - 1, max(0, len(text) - 5), -1) if from_end else range(1, min(len(text), 5))
    # The bytes of a letter in UTF-8, but for the first one, are 10xxxxxx.
    return next((place for place in places if text[place] & 0xC0 != 0x80), len(text))


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """A file to read, uncompressed.

    Raises:
        ValueError: It is cut off or damaged, or needs the package zstandard, which is not installed.
        OSError: It cannot be read; both name it.
    """
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                yield file
        elif path.suffix == ".zst":
            with path.open("rb") as file, io.BufferedReader(Zstandard(path, file)) as inside:
                yield inside
        else:
            with path.open("rb") as file:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is cut off or damaged: {error}") from error
    except OSError as error:
        raise error if error.filename else OSError(f"{path}: {error}") from error


class Zstandard(io.RawIOBase):
    """What is in a file of zstd's, one frame after the other.

    The package's own reader takes a file that was cut off for one that ends.
    """

    def __init__(self, path: Path, file: io.BufferedIOBase):
        if importlib.util.find_spec("zstandard") is None:
            raise ValueError(f"{path} needs the package zstandard: pip install zstandard")
        import zstandard

        self._path, self._file, self._package = path, file, zstandard
        self._frame: Any = None
        self._packed = self._ready = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            # Few bytes, since each may become many thousands.
            self._packed = self._packed or self._file.read(4096)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("the last frame has no end")
                return 0
            self._frame = self._frame or self._package.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(self._packed)
            except self._package.ZstdError as error:
                raise ValueError(f"{self._path} is cut off or damaged: {error}") from error
            self._packed, self._frame = self._frame.unused_data, None if self._frame.eof else self._frame
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed, by its name."""
    return path.suffix in (".gz", ".zst")


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
    built = any(part.startswith(("config-", "_sysconfigdata")) for part in path.parts)
    return path.suffix == ".py" and is_visible(path) and OTHERS.isdisjoint(path.parts) and not built


def is_binary(path: Path) -> bool:
    """Whether a file holds no text: a zero byte among its first 8,000, as git has it; compressed lines are text."""
    if has_lines(path) or is_compressed(path):
        return not has_lines(path)
    with path.open("rb") as file:
        return b"\0" in file.read(8000)


def place_of(content: bytes) -> float:
    """A number in [0, 1) from a file's name, or a document; the same on every machine, as Python's `hash` is not."""
    return int.from_bytes(hashlib.sha256(content).digest()[:4], "big") / 2**32


def _text(line: bytes, field: str, where: str) -> bytes:
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}, is no JSON: {error}") from None
    text = found.get(field) if isinstance(found, dict) else None
    if isinstance(text, str):
        return text.encode(errors="surrogatepass")  # half of a pair is no UTF-8, as whoever encodes the text finds
    if isinstance(found, dict) and field in found:
        raise ValueError(f"{where}, has {json.dumps(text)[:40]} in its field {field!r}, which is no text")
    has = ", ".join(sorted(found)) if isinstance(found, dict) else type(found).__name__
    raise ValueError(f"{where}, has no text in its field {field!r}; it has {has}")
