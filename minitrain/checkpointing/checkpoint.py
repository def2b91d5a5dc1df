"""`minitrain.checkpointing.resharding` for a whole training: complete or absent, with checksums, and several regions.

**Idea.** A checkpoint is one device's model, cut into regions. Everything is written into a folder with another name,
the manifest last, and then the folder is renamed, so that a checkpoint is complete or does not exist.

**Source.** PyTorch, torch.distributed.checkpoint, which plans, writes and reads the regions, as in Liang et al. 2025,
"TorchTitan". Writing, syncing, renaming: Pillai et al. 2014, "All File Systems Are Not Created Equal".
**Sent.** Plans, checksums and outcomes only, so that rank 0 can check that the regions make up every tensor, and all
ranks end alike. Tensors go through a file system that all ranks see.
**Cost.** Each element is written once, and only shards with gaps in memory or on a GPU are copied first. Loading reads
a saved region once for each shard that it overlaps, and each file once more for its checksum.
Also called sharded or distributed checkpoint; universal checkpoint (DeepSpeed).
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed import checkpoint as library
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata

from minitrain.checkpointing.full import manifest
from minitrain.checkpointing.full.agreement import another_model, check_save, family, nonempty, same_on_all_ranks
from minitrain.checkpointing.full.shards import (
    Reader,
    Shard,
    ShardedTensor,
    State,
    WritePlan,
    Writer,
    check_shards,
    flat_regions,
)
from minitrain.comm.control import gather_objects

__all__ = ["Shard", "State", "ShardedTensor", "delete", "flat_regions", "load", "newest", "save"]
UNFINISHED, REPLACED, PASSED_OVER = ".unfinished", ".replaced", ".passed-over"


def save(
    folder: Path,
    step: int,
    state: State,
    extra: dict[str, Any],
    keep: int = 2,
    group: dist.ProcessGroup | None = None,
) -> Path | None:
    """Write a checkpoint, completely or not at all; every rank calls it.

    Args:
        folder: Where checkpoints are; this one becomes `folder/step-00000100`.
        state: This rank's shards. All ranks' shards together make up every tensor, each element written once.
        extra: Other data that the run needs to go on; JSON, the same on all ranks.
        keep: How many checkpoints stay once this one is complete: this one and the last ones before it. Those whose
            manifest cannot be read do not count. Later ones get the ending `.passed-over`, and are not removed.

    Returns:
        Its path; None if it could not be written, as on a full disk, with a warning on rank 0. The earlier checkpoints
        are then unchanged.

    Raises:
        ValueError: On every rank alike, before anything is written: shards that do not make up the tensors, or `extra`
            that is not JSON or differs between ranks.

    Examples:
        >>> from minitrain.checkpointing import save, state_of
        >>> from minitrain.zero import Zero3
        >>> model = Zero3(model, torch.optim.AdamW, lr=0.01)
        >>> path = save(folder, 100, state_of(model), {"steps": 100})
    """
    folder = Path(folder)
    final = folder / f"step-{step:08d}"
    unfinished = final.with_name(final.name + UNFINISHED)
    check_save(step, state, extra, keep, group)
    first = dist.get_rank(group) == 0
    try:
        same_on_all_ranks(lambda: _prepare(folder, unfinished) if first else None, group)
        sums = same_on_all_ranks(lambda: _write(unfinished, state, group), group)
        files = {name: found for mine in gather_objects(sums, group) for name, found in mine.items()}
        content = manifest.Manifest(step, files, extra)
        same_on_all_ranks(lambda: _complete(unfinished, final, content) if first else None, group)
    except Exception as error:
        if first:
            delete(unfinished)  # makes room again
        if not isinstance(error, OSError):
            raise
        if first:
            warnings.warn(f"{final} could not be saved: {error}; earlier checkpoints are kept", stacklevel=2)
        return None
    if first:
        with suppress(OSError):  # it is tried again after the next save
            _tidy(folder, step, final.name, keep)
    return final


def load(
    path: Path, state: State, group: dist.ProcessGroup | None = None, check: bool = True, kind: str = ""
) -> dict[str, Any]:
    """Fill all shards of `state` from a checkpoint that was saved in this or any other layout; every rank calls it.

    Nothing in the folder is executed (see `Reader`), but checksums find accidents, not intent: anyone who can write to
    the folder can change weights and manifest together. `minitrain.checkpointing.full.weights` imports foreign weights.

    Args:
        state: This rank's shards, which are filled in place. All ranks together name every tensor of the checkpoint, or
            of those of this kind.
        check: Check all checksums first; False where `newest` has just done so.
        kind: Load only tensors whose names begin so, such as "model." for weights alone.

    Returns:
        The `extra` that `save` was given.

    Raises:
        ValueError: On every rank alike, before any tensor is changed: the checkpoint is damaged, or of another model;
            names files or tensors.
        OSError: On every rank alike: a file could not be read. Some shards may have been filled.

    Examples:
        >>> from minitrain.checkpointing import load, newest, save, state_of
        >>> from minitrain.zero import Zero1, Zero3
        >>> save(folder, 100, state_of(Zero3(model, torch.optim.AdamW, lr=0.01)), {"steps": 100})
        >>> other = Zero1(Llama(), torch.optim.AdamW, lr=0.01)  # or any other number of ranks
        >>> steps = load(newest(folder), state_of(other))["steps"]
        >>> other.restore()
    """
    path = Path(path)
    if check and (found := _damage(path, group)):
        raise ValueError("; ".join(found))

    def opened() -> tuple[manifest.Manifest, Reader, Metadata]:
        content = manifest.read(path)
        reader = Reader(path, content.files)
        check_shards(state)
        return content, reader, reader.read_metadata()

    content, reader, metadata = same_on_all_ranks(opened, group)
    if problems := another_model(state, metadata, group, kind):
        raise ValueError(f"{path} is a checkpoint of another model: {'; '.join(problems)}")
    # Holds at most two saved regions: the library keeps one until it has read the next.
    same_on_all_ranks(lambda: reader.fill(nonempty(state), metadata), group)
    return content.extra


def newest(folder: Path, group: dist.ProcessGroup | None = None) -> Path | None:
    """The checkpoint with the highest step that is complete and undamaged, or None; every rank calls it.

    A warning on rank 0 names each damaged or missing file in those that are passed over. The ranks share the
    reading. Neither clocks nor names matter, since a save renames all checkpoints that claim a later step than its own:
    the run must have passed over them as damaged.
    """
    folder = Path(folder)
    first = dist.get_rank(group) == 0
    mine = same_on_all_ranks(lambda: [each.name for each in _candidates(folder)] if first else [], group)
    for name in gather_objects(mine, group)[0]:  # rank 0's list, on every rank
        found = _damage(folder / name, group)
        if not found:
            return folder / name
        if first:
            warnings.warn(f"{'; '.join(found)}; looking for an earlier checkpoint", stacklevel=2)
    return None


def _prepare(folder: Path, unfinished: Path) -> None:
    """Make the folder to write into, and remove what killed attempts have left."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("step-*" + UNFINISHED):
        delete(left)
    for left in folder.glob("step-*" + REPLACED):
        final = left.with_suffix("")
        if final.exists():
            _remove(left)
        else:
            final.unlink(missing_ok=True)  # a link that leads nowhere
            left.rename(final)  # killed between two renames: nothing has come in its place
    unfinished.mkdir()


def _write(path: Path, state: State, group: dist.ProcessGroup | None) -> dict[str, manifest.Sum]:
    """Write this rank's regions, and return size and checksum of each file that it wrote."""
    try:
        library.save({}, storage_writer=Writer(path), planner=WritePlan(state), process_group=group)
    except CheckpointException as failure:  # not derived from Exception; the same on all ranks
        errors = [error for error, _ in failure.failures.values()]
        kinds = {error.__class__ if not isinstance(error, Exception) else family(error) for error in errors}
        raise (kinds.pop() if len(kinds) == 1 else RuntimeError)("; ".join(map(str, errors))) from None
    rank = dist.get_rank(group)
    mine = [*path.glob(f"__{rank}_*"), *([path / ".metadata"] if rank == 0 else [])]
    return {file.name: manifest.checksum(file) for file in mine}


def _complete(unfinished: Path, final: Path, content: manifest.Manifest) -> None:
    """Write the manifest and give the folder its name; only now is there a checkpoint."""
    for name, expected in content.files.items():
        if not (unfinished / name).exists() or os.path.getsize(unfinished / name) != expected.bytes:
            raise OSError(f"rank 0 does not see {name} as it was written; all ranks need to write to one file system")
    manifest.write(unfinished, content)
    replaced = final.with_name(final.name + REPLACED)
    if os.path.lexists(final):  # this step was saved before, and a folder is renamed only onto an empty one
        final.rename(replaced)
    unfinished.rename(final)
    manifest.sync_folder(final.parent)
    _remove(replaced)


def _tidy(folder: Path, step: int, written: str, keep: int) -> None:
    """Remove old checkpoints, and set aside those that are later than the one just written."""
    left = keep - 1
    for other in _candidates(folder):
        path = folder / other.name
        if other.name == written:
            continue
        if other.step > step:
            aside = path.with_name(other.name + PASSED_OVER)
            delete(aside)
            path.rename(aside)
            warnings.warn(f"{path} is later than step {step}, just saved; it is now {aside.name}", stacklevel=3)
        elif left == 0:
            _remove(path)
        elif other.readable:
            left -= 1


def _remove(path: Path) -> None:
    """Remove a checkpoint if possible; if killed meanwhile, the rest does not look like one."""
    left = path.with_name(path.name.removesuffix(REPLACED) + ".old" + UNFINISHED)
    with suppress(OSError):  # it is tried again after the next save
        path.rename(left)
        delete(left)


def delete(path: Path) -> None:
    """Delete the file or folder of this name, if possible; for a link only the link, never its target."""
    with suppress(OSError):  # it stays, and blocks only its own name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)


class _Candidate(NamedTuple):
    """Possible checkpoints: their steps by manifest, or by name where the manifest cannot be read."""

    step: int
    readable: bool
    name: str


def _candidates(folder: Path) -> list[_Candidate]:
    """Everything with the name of a checkpoint, the latest step first."""
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if named := re.fullmatch(rf"step-(\d{{8,}})({re.escape(REPLACED)})?", path.name):
            try:
                found.append(_Candidate(manifest.read(path).step, True, path.name))
            except (ValueError, OSError):
                found.append(_Candidate(int(named[1]), False, path.name))
    # Of two with one step the one that has the step's own name: a copy has another, and one that is replaced, too.
    return sorted(found, key=lambda each: (each.step, each.name == f"step-{each.step:08d}", each.name), reverse=True)


def _damage(path: Path, group: dist.ProcessGroup | None) -> list[str]:
    """The errors in a checkpoint's files, the same list on every rank."""
    try:
        found = manifest.damage(path, manifest.read(path), dist.get_rank(group), dist.get_world_size(group))
    except (ValueError, OSError) as error:
        found = [str(error)]
    return list(dict.fromkeys(sentence for mine in gather_objects(found, group) for sentence in mine))


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
