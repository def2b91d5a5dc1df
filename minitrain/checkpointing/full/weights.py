"""Importing and exporting weights: safetensors files, which are numbers after a header, with nothing to execute.

A file is eight bytes with the length of the header; the header, which is JSON with each tensor's name, dtype, shape and
position; and the numbers. So it can be written one tensor at a time, read from the middle, and trusted as far as
numbers go, whatever its origin. Source: Hugging Face, safetensors, "Format".

Exporting takes one process, which holds one tensor at a time and reads and writes each element once. To import, each
rank reads only its own regions, twice. GPT-2's weights may have their names and places of Hugging Face
(`checkpointing/full/gpt2.py`). Open `checkpointing/full/shards.py` and `checkpointing/full/manifest.py` first.
Also called consolidated checkpoint; full state dict.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitrain.checkpointing.full import gpt2, manifest
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.gpt2 import HEAD, TABLE, TIED, Place, Shape
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


class Whole(NamedTuple):
    """A tensor of a file to be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[str]  # names of the checkpoint's tensors that it is made of, one after another along dim 0
    transposed: bool  # after that


def export_safetensors(path: Path, file: Path, as_gpt2: bool = False) -> None:
    """Write a checkpoint's weights to a safetensors file; one process calls it.

    Args:
        path: The checkpoint, saved in any layout.
        file: The file to write; it appears when it is complete.
        as_gpt2: Use Hugging Face's names and places for GPT-2, in place of our names on one device.

    Raises:
        ValueError: The checkpoint is damaged, safetensors has no such dtype, or GPT-2 lacks some of the weights.
    """
    path, file = Path(path), Path(file)
    content = manifest.read(path)
    # Weights that leave a checkpoint leave its checksums behind.
    if found := manifest.damage(path, content):
        raise ValueError("; ".join(found))
    reader = Reader(path, content.files)
    metadata = reader.read_metadata()
    saved = {
        name.removeprefix(PREFIX): about
        for name, about in metadata.state_dict_metadata.items()
        if name.startswith(PREFIX)
    }
    kinds = {name: (tuple(about.size), about.properties.dtype) for name, about in saved.items()}  # type: ignore[union-attr]
    wholes = _as_gpt2(kinds) if as_gpt2 else {name: Whole(*kind, [name], False) for name, kind in kinds.items()}
    # Wide ones first, which keeps all of them aligned.
    wholes = dict(sorted(wholes.items(), key=lambda each: (-each[1].dtype.itemsize, each[0])))

    def read(name: str) -> Tensor:
        shape, dtype = kinds[name]
        tensor = torch.empty(shape, dtype=dtype)
        whole = ShardedTensor(shape, dtype, [Shard(tensor, (0,) * len(shape))])
        reader.fill({PREFIX + name: whole}, metadata)
        return tensor

    unfinished = file.with_name(file.name + ".unfinished")
    try:
        # Under another name, so that a file that is cut short is never taken for a complete one.
        with open(unfinished, "wb") as stream:
            stream.write(_header(wholes, content.step))
            for whole in wholes.values():
                parts = [read(name) for name in whole.parts]
                tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
                tensor = tensor.T.contiguous() if whole.transposed else tensor
                stream.write(tensor.flatten().view(torch.uint8).numpy().data)
            stream.flush()
            os.fsync(stream.fileno())
        # After the sync, or a crash could leave the name without the numbers.
        unfinished.rename(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _as_gpt2(kinds: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, Whole]:
    """The tensors of a file with GPT-2's names, as `GPT2LMHeadModel` saves them, by shapes and dtypes of ours."""
    wholes: dict[str, Whole] = {}
    strangers = [name for name in sorted(kinds) if gpt2.place(name) is None]
    if strangers or "embedding.positions.weight" not in kinds:
        what = f"has no {', '.join(strangers[:4])}" if strangers else "has learned positions, and this model none"
        raise ValueError(f"GPT-2 {what}; leave out as_gpt2 (--format gpt2), and the file will have our own names")
    for name in sorted(kinds, key=lambda name: gpt2.place(name) or Place(name)):  # query, key, value
        shape, dtype = kinds[name]
        at = gpt2.place(name) or Place(name)
        there = at.name if at.name == TIED else gpt2.PREFIX + at.name
        wholes.setdefault(there, Whole(at.shape(shape), dtype, [], at.transposed)).parts.append(name)
    return wholes


def _header(wholes: dict[str, Whole], step: int) -> bytes:
    if sys.byteorder != "little":
        raise ValueError("safetensors files are little-endian, and this machine is not; export on another")
    header: dict[str, object] = {"__metadata__": {"format": "pt", "step": str(step)}}
    end = 0
    for name, (shape, dtype, _, _) in wholes.items():
        if dtype not in _DTYPES:
            raise ValueError(f"{name} is of {dtype}, which has no name here in safetensors; use one of {[*_DTYPES]}")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that the numbers begin on a multiple of 8
    return len(text).to_bytes(8, "little") + text


def import_safetensors(file: Path, state: State) -> None:
    """Fill the weights of `state` from a safetensors file; every rank calls it.

    Numbers of another dtype are converted to that of the shards.

    Args:
        file: The file; its names are those of one device's model, or Hugging Face's for GPT-2.
        state: This rank's shards. Only names that begin with "model." are filled.

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

    there = same_on_all_ranks(shapes, None)
    asked = {name: tuple(sharded.shape) for name, sharded in mine.items()}
    # Of all ranks: one alone cannot tell which tensors are left over.
    everyone = {name: shape for each in gather_objects(asked) for name, shape in each.items()}
    places = gpt2.places(everyone, there) if gpt2.recognized(there) else {name: Place(name) for name in everyone}
    if problems := _another_model(everyone, there, places):
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        about = f"; {gpt2.sizes(there)}" if gpt2.recognized(there) else ""
        raise ValueError(f"{file} is of another model: {'; '.join(problems[:4])}{more}{about}")
    # A reading of its own, since a NaN must be found before any weight is changed.
    found = gather_objects(same_on_all_ranks(lambda: _not_finite(file, mine, places), None))
    if lost := sorted(set().union(*found)):
        more = f" and {len(lost) - 4} more" if len(lost) > 4 else ""
        raise ValueError(
            f"{file} has NaN or infinite elements in {', '.join(lost[:4])}{more}; give weights that are all finite "
            "numbers, such as those of an earlier checkpoint"
        )
    # A tied run would drop a head of its own without a word.
    if TIED in there and HEAD not in everyone and TABLE in everyone:
        head = places[TABLE]._replace(name=TIED)
        if any(gather_objects(same_on_all_ranks(lambda: _apart(file, mine, places[TABLE], head), None))):
            raise ValueError(f"{file} has a {TIED} that differs from {places[TABLE].name}; add --tied False")
    same_on_all_ranks(lambda: _fill(file, mine, places), None)


def _another_model(run: dict[str, Shape], there: dict[str, Shape], places: dict[str, Place]) -> list[str]:
    """How the tensors of a file differ from those of a run, by the file's names."""
    expected = {places[name].name: places[name].shape(shape) for name, shape in sorted(run.items())}
    over = there.keys() - expected.keys()
    if gpt2.recognized(there):
        over = {name for name in over if not gpt2.left_out(name)}
        if TIED in over and HEAD not in run and TABLE in run:  # a second name of the table
            over.remove(TIED)
            expected[TIED] = run[TABLE]
    problems = [f"it lacks {name}" for name in sorted(expected.keys() - there.keys())]
    problems += [f"the run has no {name}" for name in sorted(over)]
    return problems + [
        f"{name} has shape {there[name]} in it and {shape} in the run"
        for name, shape in sorted(expected.items())
        if there.get(name, shape) != shape
    ]


def _regions(file: Path, state: State, places: dict[str, Place]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each shard: its tensor's name, its memory, and what the file has for it, converted to the shard's dtype."""
    with safe_open(file, framework="pt") as opened:
        for name, sharded in state.items():
            at, whole = places[name], tuple(sharded.shape)
            for tensor, offsets in sharded.shards:
                # `region` counts along the first dimension, which such a tensor lacks.
                if not tensor.dim():
                    yield name, tensor, opened.get_tensor(at.name).to(tensor.dtype)
                elif tensor.numel():
                    region = opened.get_slice(at.name)[at.region(whole, offsets, tuple(tensor.shape))]
                    yield name, tensor, (region.T if at.transposed else region).to(tensor.dtype)


def _not_finite(file: Path, state: State, places: dict[str, Place]) -> set[str]:
    found = {name for name, _, region in _regions(file, state, places) if not region.isfinite().all()}
    return {places[name].name for name in found}


def _apart(file: Path, state: State, *two: Place) -> bool:
    """Whether two tensors of a file differ in this rank's regions of the table."""
    held = {name: sharded for name, sharded in state.items() if name == TABLE}
    one, other = ([region for *_, region in _regions(file, held, {TABLE: place})] for place in two)
    return any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _fill(file: Path, state: State, places: dict[str, Place]) -> None:
    for _, tensor, region in _regions(file, state, places):
        tensor.detach().copy_(region)
