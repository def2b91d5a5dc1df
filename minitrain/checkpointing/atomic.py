"""Atomic checkpoints: at every moment of a save, the folder has a checkpoint that is complete.

**Idea.** Nothing is overwritten. Files go into a new folder, a manifest of their sizes and checksums comes last, and
then the folder gets its name, which a file system does at once or not at all. `load` takes the newest folder whose
files are as its manifest says.

**Source.** POSIX, rename() and fsync(); Pillai et al. 2014, "All File Systems Are Not Created Equal", §2 and §4.
**Cost.** Each byte is hashed and written once, and the disk has room for `keep` + 1 checkpoints.
The full form, `minitrain.checkpointing.checkpoint`, adds the shards of all ranks, and saves a step a second time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

MANIFEST, UNFINISHED = "manifest", ".unfinished"


def save(root: Path, step: int, files: dict[str, bytes], keep: int = 2) -> Path:
    """Add the checkpoint of `step` to the existing folder `root`, and remove all but the `keep` latest ones."""
    final, unfinished = root / f"step-{step:08d}", root / f"step-{step:08d}{UNFINISHED}"
    assert keep >= 1 and files and MANIFEST not in files, f"invalid: {keep=}, files={list(files)}"
    assert not final.exists(), f"{final} exists; remove it first, or save another step"
    # Killed attempts have left their room on the disk.
    for left in root.glob(f"*{UNFINISHED}"):
        shutil.rmtree(left)
    os.mkdir(unfinished)
    for name, data in files.items():
        write(unfinished / name, data)
    lines = "\n".join(f"{sha256(data)} {len(data)} {name}" for name, data in files.items())
    # The manifest has a checksum of its own as its last line; else one cut short could look complete.
    write(unfinished / MANIFEST, f"{lines}\n{sha256(lines.encode())}".encode())
    # The folder's list of names is data as well, and has to be on the disk before the folder counts.
    sync(unfinished)
    os.rename(unfinished, final)
    sync(root)
    # Only now, since until here the old ones were all there was.
    for old in checkpoints(root)[:-keep]:
        shutil.rmtree(old)
    return final


def write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk; without that a power failure leaves it empty."""
    with open(path, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def load(root: Path) -> tuple[int, dict[str, bytes]]:
    """Step and files of the newest checkpoint that is complete and undamaged."""
    damages = []
    for folder in reversed(checkpoints(root)):
        damages.append(damage(folder))
        if not damages[-1]:
            files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}
            return int(folder.name.split("-")[1]), files
    raise FileNotFoundError(f"{root} has no complete, undamaged checkpoint: {'; '.join(damages) or 'it is empty'}")


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint; "" if nothing is."""
    if not (folder / MANIFEST).is_file():
        return f"{folder / MANIFEST} is missing"
    *lines, own = (folder / MANIFEST).read_bytes().split(b"\n")
    if own != sha256(b"\n".join(lines)).encode():
        return f"{folder / MANIFEST} is damaged"
    for line in lines:
        digest, size, name = line.decode().split(" ", 2)
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
        data = (folder / name).read_bytes()
        # The size is implied by the checksum, but tells the reader what happened.
        if len(data) != int(size):
            return f"{folder / name} has {len(data)} bytes instead of {size}"
        if sha256(data) != digest:
            return f"{folder / name} is damaged: its checksum is another"
    return ""


def checkpoints(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("step-*") if path.suffix != UNFINISHED)


def sync(folder: Path) -> None:
    listing = os.open(folder, os.O_RDONLY)
    os.fsync(listing)
    os.close(listing)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
