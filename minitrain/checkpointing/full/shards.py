"""The regions of a tensor that a rank holds, and how torch.distributed.checkpoint learns of them.

However a layout cuts a tensor, one description fits: the regions of the unsharded tensor that this rank holds. Tensor
parallelism gives a rank some rows or columns, which is one region. ZeRO gives it some of the flattened elements, which
are at most 2d − 1 regions in d dimensions. A checkpoint stores regions. A rank that loads it asks for other regions,
and reads the overlaps. This file is the first to open; `checkpointing/checkpoint.py` uses all of it.

Source: PyTorch, torch.distributed.checkpoint (`SavePlanner`, `LoadPlanner`, `StorageWriter`, `StorageReader`). Writing
copies only shards that have gaps in memory or lie on a GPU, and keeps the copies until the file is complete. Reading
takes one saved region into memory at a time.
Also called sharded state dict; local shard and global offset (DTensor).
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.futures import Future

from minitrain.checkpointing.full.manifest import Sum

Region = tuple[tuple[int, ...], tuple[int, ...]]


class Shard(NamedTuple):
    """A region of a whole tensor, where this rank has it in memory.

    Attributes:
        tensor: The memory, to write from or to read into, in the region's shape. It may be a view, with gaps too.
        offsets: Where the region begins in the whole tensor, in each dimension.
    """

    tensor: Tensor
    offsets: tuple[int, ...]


@dataclass
class ShardedTensor:
    """The parts of one device's tensor that this rank holds.

    Attributes:
        shape, dtype: Of the whole tensor.
        shards: The regions that this rank holds.
        writes: Whether this rank writes them; exactly one rank writes each region.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: list[Shard]
    writes: bool = True


State = dict[str, ShardedTensor]


def flat_regions(shape: Sequence[int], start: int, stop: int) -> list[Region]:
    """Offsets and sizes of the regions that elements `start` to `stop` of a flattened tensor make up, in their order.

    These are the rest of a row that has begun, then whole rows, then the beginning of a row, each row split likewise:
    at most 2d − 1 regions in d dimensions, each of them a run of elements.

    Raises:
        ValueError: The tensor has no such elements.
    """
    elements = math.prod(shape)
    if not 0 <= start <= stop <= elements:
        raise ValueError(f"start={start}, stop={stop}: shape {tuple(shape)} has elements 0 to {elements}")
    return list(_regions(tuple(shape), start, stop))


def _regions(shape: tuple[int, ...], start: int, stop: int) -> Iterator[Region]:
    # Also where a dimension is 0, by which `row` below would divide.
    if start == stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows
    if first > last:  # it begins and ends within one row
        yield from _in_row(shape, last, start - last * row, stop - last * row)
        return
    yield from _in_row(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield (first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:])
    yield from _in_row(shape, last, 0, stop - last * row)


def _in_row(shape: tuple[int, ...], index: int, start: int, stop: int) -> Iterator[Region]:
    for offsets, sizes in _regions(shape[1:], start, stop):
        yield (index, *offsets), (1, *sizes)


def flat_shards(flat: Shaped[Tensor, " elements"], shape: Sequence[int], start: int = 0) -> list[Shard]:
    """The shards that a run of a flattened tensor makes up: views of `flat`, which begins at element `start`."""
    shards, offset = [], 0
    for offsets, sizes in flat_regions(shape, start, start + flat.numel()):
        elements = math.prod(sizes)
        shards.append(Shard(flat[offset : offset + elements].view(sizes), offsets))
        offset += elements
    return shards


def check_shards(state: Mapping[str, ShardedTensor]) -> None:
    """Check that each shard lies in its whole tensor; the ValueError names the tensor, and what does not fit."""
    for name, sharded in state.items():
        for tensor, offsets in sharded.shards:
            inside = len(offsets) == len(sharded.shape) == tensor.dim() and all(
                0 <= offset and offset + size <= full
                for offset, size, full in zip(offsets, tensor.shape, sharded.shape, strict=True)
            )
            if not inside:
                raise ValueError(
                    f"{name}: a shard of shape {tuple(tensor.shape)} at {offsets} does not lie in {sharded.shape}"
                )
            if tensor.dtype != sharded.dtype:
                raise ValueError(f"{name}: a shard is of {tensor.dtype}, and the whole tensor of {sharded.dtype}")


class WritePlan(DefaultSavePlanner):
    """Tells the library which regions this rank writes; it checks that all ranks' regions make up each tensor."""

    def __init__(self, state: State):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._memory: dict[tuple[str, tuple[int, ...]], Tensor] = {}
        self._items: list[WriteItem] = []
        for name, sharded in state.items():
            for tensor, offsets in sharded.shards if sharded.writes else ():
                # An empty region may begin where another one does, and would take its place in the list.
                if tensor.numel():
                    self._memory[name, offsets] = tensor.detach()
                    self._items.append(_write_item(name, sharded, tensor, offsets))

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(self._items)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        try:
            return super().create_global_plan(all_plans)
        except ValueError as error:
            raise ValueError(_overlap(all_plans) or str(error)) from error  # torch 2.11 names nothing

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        offset = write_item.index.offset
        assert offset is not None
        tensor = self._memory[write_item.index.fqn, tuple(offset)]
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            return torch.from_dlpack(tensor)  # no copy: the library copies a view whose storage is larger than itself
        return tensor


def _write_item(name: str, sharded: ShardedTensor, tensor: Tensor, offsets: tuple[int, ...]) -> WriteItem:
    region = ChunkStorageMetadata(torch.Size(offsets), tensor.shape)
    about = TensorWriteData(region, TensorProperties(dtype=sharded.dtype), torch.Size(sharded.shape))
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.SHARD, tensor_data=about)


def _overlap(plans: Sequence[SavePlan]) -> str:
    """Names two regions that have elements in common, if there are any."""
    regions: dict[str, list[ChunkStorageMetadata]] = {}
    for item in (item for plan in plans for item in plan.items):
        assert item.tensor_data is not None
        regions.setdefault(item.index.fqn, []).append(item.tensor_data.chunk)
    for name, found in regions.items():
        # All pairs, which takes long, but only after the library has found an error.
        for a, b in combinations(found, 2):
            sides = zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True)
            if all(max(i, j) < min(i + m, j + n) for i, m, j, n in sides):
                return (
                    f"{name}: shards of shape {tuple(a.sizes)} at {tuple(a.offsets)} and of shape {tuple(b.sizes)} at "
                    f"{tuple(b.offsets)} overlap; write each element once"
                )
    return ""


class ReadPlan(LoadPlanner):
    """Tells the library which regions this rank reads; a saved region is read for each shard that it overlaps."""

    def __init__(self, state: State, metadata: Metadata):
        self._state = {name: [p for p in sharded.shards if p.tensor.numel()] for name, sharded in state.items()}
        self.set_up_planner({}, metadata)

    def set_up_planner(self, state_dict: Any, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        assert metadata is not None
        self._saved = metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        items: list[ReadItem] = []
        for name, shards in self._state.items():
            if shards:
                regions = [ChunkStorageMetadata(torch.Size(shard.offsets), shard.tensor.shape) for shard in shards]
                items += create_read_items_for_chunk_list(name, self._saved[name], regions)  # type: ignore[arg-type]
        return LoadPlan(items)

    # Nothing to agree on: each rank reads what it needs, whatever the others read.
    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        index = read_item.dest_index
        assert index.index is not None
        view = self._state[index.fqn][index.index].tensor.detach()
        for dim, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            # Views, so that bytes go from the file into the training's own memory.
            view = view.narrow(dim, offset, length)
        return view

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Nothing is left to do: the filled tensor is a view of the shard."""

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise ValueError(f"{read_item.dest_index.fqn} is no tensor")


class Writer(FileSystemWriter):
    """The library's writer of files, one per rank, each brought to the disk before it counts as written."""

    def storage_meta(self) -> None:
        """No path of this machine in the checkpoint."""

    def write_data(self, plan: SavePlan, planner: Any) -> Future[Any]:
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # torch.save answers a full disk with a RuntimeError about positions, which hides the reason.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Reader(FileSystemReader):
    """The library's reader of files, which here executes no code from a file. Tensors are read with `weights_only`."""

    def __init__(self, path: Path, files: Mapping[str, Sum]):
        super().__init__(path)
        self._folder, self._files = path, files

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        try:
            with open(self._folder / ".metadata", "rb") as stream:
                metadata = _Unpickler(stream).load()
            problem = _problem(metadata, self._files)
        except (AttributeError, TypeError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(f"{self._folder}: .metadata is no list of tensors ({error})") from None
        if problem:
            raise ValueError(f"{self._folder}: .metadata {problem}; use another checkpoint")
        return metadata

    def fill(self, state: State, metadata: Metadata) -> None:
        plan = ReadPlan(state, metadata)
        self.set_up_storage_reader(metadata, is_coordinator=True)
        self.read_data(plan.create_local_plan(), plan).wait()


def _problem(metadata: Metadata, files: Mapping[str, Sum]) -> str:
    """What is wrong with a list of tensors: the library would end in an error that names no file, or leave gaps."""
    stored = metadata.storage_data
    # Only files of the manifest have checksums, and a path may lead anywhere.
    if strangers := {info.relative_path for info in stored.values()} - files.keys():
        return f"refers to {sorted(strangers)}, which the manifest does not name"
    for index, info in stored.items():
        size = files[info.relative_path].bytes
        if not (info.offset >= 0 <= info.length and info.offset + info.length <= size):
            where = f"from byte {info.offset} to {info.offset + info.length}"
            return f"looks for {index.fqn} {where} of {info.relative_path}, which has {size}"
    for name, about in metadata.state_dict_metadata.items():
        regions = [(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in about.chunks]  # type: ignore[union-attr]
        if not tiles(tuple(about.size), regions) or any(MetadataIndex(name, at) not in stored for at, _ in regions):  # type: ignore[union-attr]
            return f"has regions of {name} that do not make up its shape {tuple(about.size)}"  # type: ignore[union-attr]
    return ""


def tiles(shape: tuple[int, ...], regions: Iterable[Region]) -> bool:
    """Whether regions make up a whole tensor: each element is in one of them, and none lies outside.

    A box is what its corners, counted with alternating signs, add up to; so the corners of all must be the whole's.
    """
    corners = Counter[tuple[int, ...]]()
    for (offsets, sizes), sign in [*((region, 1) for region in regions), (((0,) * len(shape), shape), -1)]:
        for far in product((0, 1), repeat=len(sizes)):
            corner = tuple(at + size * end for at, size, end in zip(offsets, sizes, far, strict=True))
            corners[corner] += sign * (-1) ** sum(far)
    return not any(corners.values())


class _Unpickler(pickle.Unpickler):
    _MODULES = {
        "torch.distributed.checkpoint.metadata": (
            ("Metadata", "MetadataIndex", "TensorStorageMetadata", "ChunkStorageMetadata", "TensorProperties")
            + ("_MEM_FORMAT_ENCODING",)
        ),
        "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
        "torch.serialization": ("_get_layout",),
        "torch": ("Size",),
    }

    def find_class(self, module: str, name: str) -> Any:
        # A pickle may name any function, to be called while it is read.
        known = name in self._MODULES.get(module, ())
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise ValueError(f"{module}.{name} has no place in a list of tensors, and was not imported")
