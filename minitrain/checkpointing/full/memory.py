"""`minitrain.checkpointing.flash` for a whole training: every rank's shards and the run's other data, in /dev/shm.

All shards of a rank are packed into one buffer. The training waits for this copy only: a thread does the rest behind
its back. What lies in memory can only be read in the layout in which it was saved: in any other, and after a machine
has been switched off, a checkpoint on the disk is taken. The folder of a training in memory is freed when the training
ends, when another one takes its place, or when the training's own folder is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.checkpointing.flash import Flash
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.shards import State
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group

ROOT = Path("/dev/shm")
EXTRA = 1 << 16  # bytes for the run's other data
OWNER = "owner"


class Memory:
    """Checkpoints in shared memory; every rank makes one, and calls alike.

    Args:
        folder: Of the training. Its memory is found by this name.
        state: This rank's shards.
        about: What makes a training, and its layout; with another the memory is freed.
        root: A folder in memory.

    Raises:
        OSError: On every rank alike: there is no such memory, too little of it, or another user could change it.
    """

    def __init__(self, folder: Path, state: State, about: dict[str, Any], root: Path = ROOT):
        hosts = gather_objects(socket.gethostname())
        # Ranks are numbered machine by machine, so the same number of ranks further on is another machine.
        apart = hosts.count(hosts[0])
        sizes = gather_objects(sum(_room(tensor) for sharded in state.values() for tensor, _ in sharded.shards))
        # As long on all ranks as on the largest, since each keeps a copy of another's.
        self._path, size = place(folder, root), EXTRA + max(sizes)
        # A group of its own, because the thread's messages must not mix with the training's.
        self._group = new_group(range(dist.get_world_size()), backend="gloo", description="memory")
        # Two slots of each rank, each with its own shards and another rank's.
        needed = 4 * size * hosts.count(socket.gethostname())
        held = same_on_all_ranks(lambda: self._make(folder, needed, root), None)
        text = json.dumps([about, sizes, str(folder.absolute())], sort_keys=True)
        # 7 bytes, which are positive as an int64, too.
        run = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        self._buffer = torch.zeros(size, dtype=torch.uint8, pin_memory=torch.cuda.is_initialized())
        try:
            self._flash = same_on_all_ranks(lambda: self._take(run, min(apart, len(hosts)), root), None)
        except OSError:
            # What an earlier run has saved there must not be lost.
            if not held:
                shutil.rmtree(self._path, ignore_errors=True)
            raise
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flash")
        self._saving: Future[None] | None = None

    def _make(self, folder: Path, needed: int, root: Path) -> int:
        """Make the folder in memory; returns the bytes that an earlier run holds there."""
        if not root.is_dir():
            raise OSError(f"{root} is no folder, so there is no shared memory to save in; leave out --flash-every")
        free_left(root)
        with suppress(FileExistsError):
            os.mkdir(self._path, 0o700)
        # Checked after it was made: if the name existed, another user may have made it.
        if problem := shared(self._path):
            raise OSError(
                f"{self._path} {problem}, so another user could read or change what is saved in it; have it removed, "
                "or leave out --flash-every"
            )
        # Blocks, since a file's length says nothing about the memory that it takes.
        held = sum(file.stat().st_blocks * 512 for file in self._path.glob("*.slots"))
        free = shutil.disk_usage(root).free + held
        if free < needed:
            raise OSError(
                f"{root} has {free} bytes left of {needed} for --flash-every; make it larger, or leave that out"
            )
        (self._path / OWNER).write_text(str(folder.absolute()), encoding="utf-8")
        return held

    def _take(self, run: int, apart: int, root: Path) -> Flash:
        """Take this rank's memory, which other programs may have taken since `_make` looked."""
        try:
            return Flash(self._path, self._buffer, run, apart, self._group)
        except OSError as error:
            raise OSError(
                f"{root} had too little left for --flash-every ({error.strerror}); make it larger, or leave that out"
            ) from error

    def save(self, step: int, state: State, extra: dict[str, Any]) -> None:
        """Copy all shards, and begin to save the copy; waits until an earlier save has ended.

        The shards may change as soon as this returns; `extra` may have at most 64 KiB as JSON.
        """
        self.wait()
        text = json.dumps(extra).encode()
        if len(text) > EXTRA:
            raise ValueError(f"extra has {len(text)} bytes as JSON; there is room for {EXTRA}")
        # JSON ignores spaces, so no length has to be stored.
        self._buffer[:EXTRA].fill_(ord(" "))
        self._buffer[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        for part, tensor in self._parts(state):
            part.copy_(tensor, non_blocking=True)
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        self._saving = self._pool.submit(self._save, step)

    def _save(self, step: int) -> None:
        # A save gives up the older of two steps. So no rank may begin before all have completed the newer one.
        dist.barrier(self._group)
        self._flash.save(step, self._buffer)

    def wait(self) -> None:
        """Wait until what was begun is in this rank's memory and the peer's."""
        saving, self._saving = self._saving, None
        if saving:
            saving.result()

    def find(self) -> int:
        """The newest step that all ranks can have, which is then ready for `load`; -1 if there is none."""
        return self._flash.load(self._buffer)

    def load(self, state: State) -> dict[str, Any]:
        """Fill all shards with what `find` has found; returns the run's other data."""
        for part, tensor in self._parts(state):
            tensor.copy_(part)
        return json.loads(self._buffer[:EXTRA].numpy().tobytes())

    def free(self) -> None:
        """Give the memory back; every rank calls it."""
        self.wait()
        self._pool.shutdown()
        self._flash.free()
        # No rank may still use the folder that all remove.
        gather_objects(None)
        shutil.rmtree(self._path, ignore_errors=True)

    def _parts(self, state: State) -> list[tuple[Tensor, Tensor]]:
        """Each shard, and its part of the buffer in the same dtype and shape."""
        found, start = [], EXTRA
        for sharded in state.values():
            for tensor, _ in sharded.shards:
                part = self._buffer[start : start + tensor.nbytes]
                start += _room(tensor)
                found.append((part.view(tensor.dtype).view(tensor.shape), tensor.detach()))
        return found


def place(folder: Path, root: Path = ROOT) -> Path:
    """The folder in memory of the training in `folder`."""
    name = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    return root / f"minitrain-{os.getuid()}-{name}"


def free_left(root: Path = ROOT) -> list[Path]:
    """Free what dead trainings have left whose folders are gone; returns whose."""
    freed = []
    for path in root.glob(f"minitrain-{os.getuid()}-*"):
        try:
            if shared(path):
                continue
            owner = Path((path / OWNER).read_text(encoding="utf-8"))
        except OSError:
            continue  # another training has just made it, or freed it
        if not owner.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            freed.append(owner)
    return freed


def shared(path: Path) -> str:
    """How another user may have a hand in a folder, whose name anyone can work out; "" where none has.

    In /dev/shm and /tmp, only its owner can rename or remove a folder. So one that is ours, and closed to others, stays
    so, and no link in it leads elsewhere.
    """
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        return "is no folder"
    if about.st_uid != os.getuid():
        return f"belongs to another user ({about.st_uid})"
    if about.st_mode & 0o077:
        return f"is open to other users (mode {stat.S_IMODE(about.st_mode):o})"
    links = sorted(entry.name for entry in path.iterdir() if entry.is_symlink())
    return f"has links in it ({', '.join(links)})" if links else ""


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // 16) * 16  # each begins where any dtype may begin
