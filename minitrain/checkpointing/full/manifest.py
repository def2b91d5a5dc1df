"""The manifest of a checkpoint: its files with sizes and checksums, written last, and the errors in a folder.

A checkpoint is complete when its manifest exists, and undamaged when every file has the size and the checksum that the
manifest lists. The manifest ends with a checksum of itself. Checksums find accidents, such as a flipped byte or a file
cut short. They are not signatures, and say nothing about the folder's author. Each file is read once when it is
written and once when it is checked.

Source: FIPS 180-4 (SHA-256); POSIX, rename(). Also called index, commit marker, `_SUCCESS` file.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

NAME = "manifest.json"
LARGEST = 64 << 20  # bytes of a manifest


class Sum(NamedTuple):
    """Size of a file, and its checksum in hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint's manifest."""

    step: int  # after which it was written
    files: dict[str, Sum]  # by name
    extra: dict[str, Any]  # the run's data other than tensors, as JSON


def checksum(file: Path) -> Sum:
    """Size and SHA-256 of a file as it is now."""
    with open(file, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Sum(stream.tell(), digest)


def write(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the folder `path` and bring it, and the folder's list of files, to the disk."""
    files = {name: list(manifest.files[name]) for name in sorted(manifest.files)}
    content = {"step": manifest.step, "files": files, "extra": manifest.extra}
    content = json.loads(json.dumps(content))  # as it will be read: keys of JSON are texts
    with open(path / NAME, "w", encoding="utf-8") as stream:
        json.dump({**content, "sha256": _own(content)}, stream, indent=1)
        stream.flush()
        # Before the folder gets its name: a crash must not leave the name without the content.
        os.fsync(stream.fileno())
    sync_folder(path)


def read(path: Path) -> Manifest:
    """The manifest of the folder `path`; a ValueError names it if it is missing or damaged."""
    try:
        about = (path / NAME).stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST:  # a pipe would be waited for
            raise ValueError("it is no file of a few megabytes")
        content = json.loads((path / NAME).read_text(encoding="utf-8"))
        own = content.pop("sha256")
        files = {name: Sum(*entry) for name, entry in content["files"].items()}
        found = Manifest(content["step"], files, content["extra"])
        sound = own == _own(content)
        # `isinstance` would let True through.
        if type(found.step) is not int:
            raise TypeError(f"step={found.step!r} is no whole number")
        if not isinstance(found.extra, dict):
            raise TypeError(f"extra={found.extra!r} is no table")
    except FileNotFoundError:
        raise ValueError(f"{path}: {NAME} is missing, so the checkpoint is not complete") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # no text, or other JSON
        raise ValueError(f"{path}: {NAME} is damaged: it cannot be read ({error})") from None
    if not sound:
        raise ValueError(f"{path}: {NAME} is damaged: its checksum is another")
    return found


def damage(path: Path, manifest: Manifest, rank: int = 0, ranks: int = 1) -> list[str]:
    """The errors in the files, in sentences that name them; rank r of n checks every n-th file from the r-th."""
    found = []
    for name, expected in list(manifest.files.items())[rank::ranks]:
        try:
            size = os.path.getsize(path / name)
            # The size first, for which nothing has to be read.
            if size != expected.bytes:
                found.append(f"{path / name} has {size} bytes instead of {expected.bytes}")
            elif checksum(path / name) != expected:
                found.append(f"{path / name} is damaged: its checksum is another")
        except FileNotFoundError:
            found.append(f"{path / name} is missing")
        except OSError as error:
            found.append(f"{path / name} cannot be read: {error.strerror}")
    return found


def sync_folder(path: Path) -> None:
    """Bring a folder's list of names to the disk; otherwise a renamed file may have its old name after a crash."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _own(content: dict[str, Any]) -> str:
    # Sorted, so that the order in the file does not matter; without the checksum itself.
    text = json.dumps({key: content[key] for key in ("step", "files", "extra")}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
