"""A disk that fails when it is told to: a save is killed, or the power goes, at any of its operations.

A module's `os`, `shutil` and `open` are replaced by a `Disk`, which does what they do, counts, and raises `Killed` at a
chosen moment. After a power failure, whatever had not been synced may be lost, or not. Two worst cases are tried
(Pillai et al. 2014, §2): names are on the disk, but contents that were not synced are empty; and contents are there,
but changes of a folder's list of names are undone if the folder was not synced.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minitrain.checkpointing import atomic

FAILURES = ("killed", "power: unsynced contents lost", "power: unsynced names lost")


class Killed(BaseException):
    """The process has ended here. Not an `Exception`, so that no cleaning up takes place, either."""


class Disk:
    """Operations of a disk, counted.

    Args:
        dies: The number of the operation, from 0, before which the process ends; None lets it live.
        half: Whether it ends in the midst of this operation, if that is a write.
    """

    O_RDONLY = os.O_RDONLY

    def __init__(self, dies: int | None = None, half: bool = False):
        self.dies, self.half = dies, half
        self.count = 0  # of operations so far
        self.contents: set[Path] = set()  # written, not synced
        self.lists: list[tuple[str, Path, Path | bytes]] = []  # changes of names, in folders that were not synced
        self.paths: dict[int, Path] = {}
        self.listings: set[int] = set()  # folders that are open

    def operation(self, name: str) -> bool:
        """Count; whether to do only half of it."""
        if self.count == self.dies and not self.half:
            raise Killed(name)
        self.count += 1
        return self.count - 1 == self.dies

    def mkdir(self, path: Path) -> None:
        self.operation("mkdir")
        os.mkdir(path)
        self.lists.append(("new", Path(path), b""))

    def rename(self, old: Path, new: Path) -> None:
        self.operation("rename")
        os.rename(old, new)
        moved = {path: Path(new) / path.relative_to(old) for path in self.contents if path.is_relative_to(old)}
        self.contents = {moved.get(path, path) for path in self.contents}
        self.lists = [
            (kind, Path(new) / path.relative_to(old) if path != old and path.is_relative_to(old) else path, more)
            for kind, path, more in self.lists
        ]
        self.lists.append(("rename", Path(new), Path(old)))

    def rmtree(self, path: Path) -> None:
        half = self.operation("remove")
        for number, file in enumerate(sorted(Path(path).iterdir())):
            if half and number:
                raise Killed("remove")
            os.unlink(file)
        os.rmdir(path)

    def open(self, path: Path, flags: Any) -> Any:
        if flags == os.O_RDONLY:
            descriptor = os.open(path, flags)
            self.paths[descriptor] = Path(path)
            self.listings.add(descriptor)
            return descriptor
        self.operation("open")
        if not Path(path).exists():
            self.lists.append(("new", Path(path), b""))
        stream = Stream(path, flags)
        stream.disk, self.paths[stream.fileno()] = self, Path(path)
        self.contents.add(Path(path))
        return stream

    def close(self, descriptor: int) -> None:
        self.listings.remove(descriptor)
        os.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        self.operation("sync")
        path = self.paths[descriptor]
        self.contents.discard(path)
        self.lists = [change for change in self.lists if change[1].parent != path]

    def fail(self, how: str) -> None:
        """What is left on the disk after the process has ended this way."""
        if how == FAILURES[1]:
            for path in self.contents:
                if path.exists():
                    path.write_bytes(b"")
        if how == FAILURES[2]:
            for kind, path, more in reversed(self.lists):
                if kind == "rename" and path.exists():  # what was removed meanwhile stays so
                    os.rename(path, more)  # type: ignore[arg-type]
                elif path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)


class Stream(io.FileIO):
    """A file that is open for writing on a `Disk`, without a buffer."""

    disk: Disk

    def write(self, data: Any) -> int:
        half = self.disk.operation("write")
        written = super().write(data[: len(data) // 2] if half else data)
        if half:
            raise Killed("write")
        return written


@contextmanager
def on(disk: Disk) -> Iterator[Disk]:
    """Within the block, `minitrain.checkpointing.atomic` works on this disk."""
    module, given = vars(atomic), {"os": os, "shutil": shutil}
    module.update(os=disk, shutil=disk, open=disk.open)
    try:
        yield disk
    finally:
        module.update(given)
        del module["open"]
        for listing in list(disk.listings):  # as the system does for a process that has ended
            disk.close(listing)


def outcomes(
    root: Path, save: Callable[[Path, int], object], found: Callable[[Path], int | None], how: str
) -> list[int | None]:
    """What is found after a second save that ended at each of its moments, one after the other, one of `FAILURES`."""
    results: list[int | None] = []
    operation, ended = 0, False
    while not ended:
        for half in (False, True):
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir(parents=True)
            save(root, 0)
            disk = Disk(operation, half)
            try:
                with on(disk):
                    save(root, 1)
                ended = operation >= disk.count
                if half:
                    continue  # operations other than writes and removals are done or not
            except Killed:
                ended = False
            disk.fail(how)
            results.append(found(root))
        operation += 1
    return results
