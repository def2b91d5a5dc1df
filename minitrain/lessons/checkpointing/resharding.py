"""The lesson of `minitrain.checkpointing.resharding`: what its demo claims, and how that is measured."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.full.shards import Shard, ShardedTensor
from minitrain.checkpointing.resharding import load, save
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.composition.common import shared_folder

CUTS = ("rows", "columns", "replicas")


class Read(TorchDispatchMode):
    """Counts the bytes that are copied into one tensor, or into a view of it, while it is open."""

    def __init__(self, into: Tensor):
        super().__init__()
        self.bytes, self._memory = 0, into.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].untyped_storage().data_ptr() == self._memory:
            self.bytes += args[1].nbytes
        return func(*args, **(kwargs or {}))


def unsharded(world: World, rows: int) -> Tensor:
    """The tensor as one device has it; the same on all ranks."""
    return torch.randn(rows, 2 * rows + 1, generator=torch.Generator().manual_seed(rows)).to(world.device)


def cut(tensor: Tensor, way: str, part: int, parts: int) -> tuple[Tensor, tuple[int, int]]:
    """One of `parts` shards, a view, and where it begins in the unsharded tensor."""
    if way == "replicas":
        return tensor, (0, 0)
    dim = CUTS.index(way)
    shards = tensor.tensor_split(parts, dim)
    offset = sum(shard.shape[dim] for shard in shards[:part])
    return shards[part], (offset, 0) if dim == 0 else (0, offset)


def loaded(folder: Path, tensor: Tensor, way: str, part: int, parts: int) -> tuple[int, int, int]:
    """Load a shard. Elements that are not those of `tensor`, bytes read, and bytes of the shard."""
    expected, offsets = cut(tensor, way, part, parts)
    shard = torch.full(expected.shape, torch.nan, device=tensor.device)
    with Read(shard) as read:
        load(folder, shard, offsets)
    return int((shard != expected).sum()), read.bytes, shard.nbytes


def from_cut_to_cut(world: World, folder: Path, tensor: Tensor) -> list[Claim]:
    """Claims that every cut loads what each other saved, on other numbers of ranks too, and how much that reads."""
    changed: dict[str, int] = {}
    read = size = payload = 0
    for way in CUTS:
        shard, offsets = cut(tensor, way, world.rank, world.size)
        save(folder / way, shard, offsets)
        if way == "columns":
            payload = sum(gather_objects(numbers_in(folder / way / f"{world.rank}.pt")))
    for way, other in itertools.product(CUTS, CUTS):
        changed[f"{way} to {other}"], got, held = loaded(folder / way, tensor, other, world.rank, world.size)
        read, size = read + got, size + held
        # The same by fewer and by more ranks; this rank plays some of them.
        for ranks in (1, world.size + 1):
            for part in range(world.rank, ranks, world.size):
                name = f"{way} to {other}, as {ranks} ranks"
                changed[name] = changed.get(name, 0) + loaded(folder / way, tensor, other, part, ranks)[0]
    cases = {name: Claim("", "loaded = saved", 0, n, "elements", "derived", "compared") for name, n in changed.items()}
    return as_key(
        fold("small form: elements changed from each of 3 cuts to each, also as 1 and as n + 1 ranks", cases),
        Claim("small form: bytes read by this rank in these loads", "Σ of its shards", size, read, "B", "derived"),
        Claim("small form: bytes of numbers in all files, from views", "S", tensor.nbytes, payload, "B", "derived"),
    )


def numbers_in(file: Path) -> int:
    """Bytes of tensors in a file of `torch.save`, which is a zip archive with the numbers under `data/`."""
    return sum(entry.file_size for entry in zipfile.ZipFile(file).infolist() if "/data/" in entry.filename)


def like_full_form(world: World, folder: Path, tensor: Tensor) -> Claim:
    """The claim that the full form gives the same bits, from rows to columns."""
    shards = []
    for way in ("rows", "columns"):
        shard, offsets = cut(tensor, way, world.rank, world.size)
        shards.append(Shard(shard if way == "rows" else torch.full_like(shard, torch.nan), offsets))
    rows, columns = ({"weight": ShardedTensor(tuple(tensor.shape), tensor.dtype, [shard])} for shard in shards)
    path = checkpoint.save(folder / "full", 0, rows, {})
    assert path is not None
    checkpoint.load(path, columns)
    save(folder / "small", *shards[0])
    mine = load(folder / "small", torch.empty_like(shards[1].tensor), shards[1].offsets)
    unlike = int((mine != shards[1].tensor).sum())
    what = "small form: elements that differ from the full form's, rows to columns"
    return Claim(what, "small = full", 0, unlike, "elements", "derived", "compared")


def hole(world: World, folder: Path, tensor: Tensor) -> Claim:
    """The claim that a hole is found, though replicas bring as many elements as the tensor has, or more."""
    save(folder, tensor[: len(tensor) // 2], (0, 0))
    try:
        load(folder, torch.empty_like(tensor), (0, 0))
        found = 0
    except AssertionError as error:
        found = int(str(error).split(" lacks ")[1].split()[0])
    missing = tensor[len(tensor) // 2 :].numel()
    what = "small form: elements found missing, where all ranks saved the first half"
    return Claim(what, "S/2w", missing, found, "elements", "derived")


def demo(world: World, rows: int = 50) -> list[Claim]:
    """Saves a matrix by rows, columns and replicas, and loads each in all; the table shows equal bits and bytes read.

    Args:
        rows: Of the matrix, which has 2 · rows + 1 columns.
    """
    tensor = unsharded(world, rows)
    with shared_folder(world) as folder:
        return [
            *from_cut_to_cut(world, folder, tensor),
            *as_key(like_full_form(world, folder, tensor), hole(world, folder / "hole", tensor)),
        ]
