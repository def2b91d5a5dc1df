"""Importing and exporting weights: safetensors files, which are numbers after a header, with nothing to execute.

A file is eight bytes with the length of the header; the header, which is JSON with each tensor's name, dtype, shape and
position; and the numbers. So it can be written one tensor at a time, read from the middle, and trusted as far as
numbers go, whatever its origin. Source: Hugging Face, safetensors, "Format".

Exporting takes one process, which holds one tensor at a time and reads and writes each element once. To import, each
rank reads only its own regions, twice, because NaN and infinity are found before any weight is changed. The ranks tell
each other which names and shapes do not fit, so that all refuse a file alike.
Also called consolidated checkpoint; full state dict.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitrain.checkpointing.full import manifest
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.shards import Reader, Shard, ShardedTensor, State, check_shards
from minitrain.comm.control import gather_objects

PREFIX = "model."
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def export_safetensors(path: Path, file: Path) -> None:
    """Write a checkpoint's weights, under their names on one device, to a safetensors file; one process calls it.

    Args:
        path: The checkpoint, saved in any layout.
        file: The file to write; it appears when it is complete.

    Raises:
        ValueError: The checkpoint is damaged, or safetensors has no such dtype.
    """
    path, file = Path(path), Path(file)
    content = manifest.read(path)
    if found := manifest.damage(path, content):
        raise ValueError("; ".join(found))
    reader = Reader(path, content.files)
    metadata = reader.read_metadata()
    saved = {name: about for name, about in metadata.state_dict_metadata.items() if name.startswith(PREFIX)}
    wholes = {name: (tuple(about.size), about.properties.dtype) for name, about in saved.items()}  # type: ignore[union-attr]
    wholes = dict(sorted(wholes.items(), key=lambda each: (-each[1][1].itemsize, each[0])))  # keeps all of them aligned
    unfinished = file.with_name(file.name + ".unfinished")
    try:
        with open(unfinished, "wb") as stream:
            stream.write(_header(wholes, content.step))
            for name, (shape, dtype) in wholes.items():
                tensor = torch.empty(shape, dtype=dtype)
                reader.fill({name: ShardedTensor(shape, dtype, [Shard(tensor, (0,) * len(shape))])}, metadata)
                stream.write(tensor.flatten().view(torch.uint8).numpy().data)
            stream.flush()
            os.fsync(stream.fileno())
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _header(wholes: dict[str, tuple[tuple[int, ...], torch.dtype]], step: int) -> bytes:
    if sys.byteorder != "little":
        raise ValueError("safetensors files are little-endian, and this machine is not; export on another")
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    end = 0
    for name, (shape, dtype) in wholes.items():
        if dtype not in _DTYPES:
            raise ValueError(f"{name} is of {dtype}, which has no name here in safetensors; use one of {[*_DTYPES]}")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name.removeprefix(PREFIX)] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def import_safetensors(file: Path, state: State, group: dist.ProcessGroup | None = None) -> None:
    """Fill the weights of `state` from a safetensors file; every rank calls it.

    Numbers of another dtype are converted to that of the shards.

    Args:
        file: The file; its names are those of one device's model.
        state: This rank's shards. Only names that begin with "model." are filled.
        group: The ranks that hold the state.

    Raises:
        ValueError: On every rank alike, before any tensor is changed: the file is damaged or of another model; names
            what is missing, left over, or of another shape, and tensors with NaN or infinite elements.
        OSError: On every rank alike: the file does not exist or cannot be read.
    """
    file = Path(file)
    mine = {name.removeprefix(PREFIX): sharded for name, sharded in state.items() if name.startswith(PREFIX)}

    def shapes() -> dict[str, tuple[int, ...]]:
        check_shards(mine)
        try:
            with safe_open(file, framework="pt") as opened:
                return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
        except SafetensorError as error:
            raise ValueError(f"{file} is no sound safetensors file: {error}") from None

    there = same_on_all_ranks(shapes, group)
    asked = {name: tuple(sharded.shape) for name, sharded in mine.items()}
    everyone = {about for each in gather_objects(asked, group) for about in each.items()}
    names = {name for name, _ in everyone}
    problems = [f"it lacks {name}" for name in sorted(names - there.keys())]
    problems += [f"the run has no {name}" for name in sorted(there.keys() - names)]
    problems += [
        f"{name} has shape {there[name]} in it and {shape} in the run"
        for name, shape in sorted(everyone)
        if there.get(name, shape) != shape
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"{file} is of another model: {'; '.join(problems[:4])}{more}")
    everyone = gather_objects(same_on_all_ranks(lambda: _not_finite(file, mine), group), group)
    if lost := sorted(set().union(*everyone)):
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        raise ValueError(
            f"{file} has NaN or infinite elements in {', '.join(lost[:4])}{more}; give weights that are all finite "
            "numbers, such as those of an earlier checkpoint"
        )
    same_on_all_ranks(lambda: _fill(file, mine), group)


def _regions(file: Path, state: State) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each shard: its tensor's name, its memory, and what the file has for it, converted to the shard's dtype."""
    with safe_open(file, framework="pt") as opened:
        for name, sharded in state.items():
            for tensor, offsets in sharded.shards:
                if not tensor.dim():
                    yield name, tensor, opened.get_tensor(name).to(tensor.dtype)
                elif tensor.numel():
                    region = tuple(slice(o, o + s) for o, s in zip(offsets, tensor.shape, strict=True))
                    yield name, tensor, opened.get_slice(name)[region].to(tensor.dtype)


def _not_finite(file: Path, state: State) -> set[str]:
    return {name for name, _, region in _regions(file, state) if not region.isfinite().all()}


def _fill(file: Path, state: State) -> None:
    for _, tensor, region in _regions(file, state):
        tensor.detach().copy_(region)
