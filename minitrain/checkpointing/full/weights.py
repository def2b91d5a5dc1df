"""Importing and exporting weights: safetensors files, which are numbers after a header, with nothing to execute.

A file is eight bytes with the length of the header; the header, which is JSON with each tensor's name, dtype, shape and
position; and the numbers. So it can be written one tensor at a time, read from the middle, and trusted as far as
numbers go, whatever its origin. Source: Hugging Face, safetensors, "Format".

Exporting takes one process, which holds one tensor at a time and reads and writes each element once. To import, each
rank reads only its own regions, twice. Weights may have Hugging Face's names and places, in one file or in several with
an index (`checkpointing/full/hugging_face.py`). Open `checkpointing/full/shards.py` and `manifest.py` first.
Also called consolidated checkpoint; full state dict.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitrain.checkpointing.full import hugging_face, manifest
from minitrain.checkpointing.full.agreement import same_on_all_ranks
from minitrain.checkpointing.full.hugging_face import HEAD, LLAMA, TABLE, TIED, Family, Place, Shape, family_of
from minitrain.checkpointing.full.shards import Reader, Shard, ShardedTensor, State, check_shards
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Model

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


def export_safetensors(path: Path, file: Path, model: dict[str, Any] | None = None) -> None:
    """Write a checkpoint's weights to a safetensors file; one process calls it.

    Args:
        path: The checkpoint, saved in any layout.
        file: The file to write; it appears when it is complete.
        model: The model's settings: use Hugging Face's names and places, and write config.json next to the file. None:
            our names on one device.

    Raises:
        ValueError: The checkpoint is damaged, safetensors has no such dtype, or Hugging Face no such model.
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
    dtype = str(next(iter(kinds.values()))[1]).removeprefix("torch.")
    config = hugging_face.configuration(model, dtype) if model else None
    wholes = {name: Whole(*kind, [name], False) for name, kind in kinds.items()}
    if config:
        wholes = _renamed(kinds, hugging_face.KINDS[config["model_type"]][0])
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
        if config:
            file.with_name(hugging_face.CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    finally:
        unfinished.unlink(missing_ok=True)


def _renamed(kinds: dict[str, tuple[Shape, torch.dtype]], family: Family) -> dict[str, Whole]:
    """The tensors of a file with a family's names, as `save_pretrained` has them, by shapes and dtypes of ours."""
    wholes: dict[str, Whole] = {}
    places = family.places(kinds, {family.prefix, *([TIED] if HEAD in kinds else [])})
    for name in sorted(kinds, key=places.__getitem__):  # query, key, value
        (shape, dtype), at = kinds[name], places[name]
        wholes.setdefault(at.name, Whole(at.shape(shape), dtype, [], at.transposed)).parts.append(name)
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


def import_safetensors(file: Path, state: State, model: Model | None = None) -> None:
    """Fill the weights of `state` from a safetensors file; every rank calls it.

    Numbers of another dtype are converted to that of the shards.

    Args:
        file: The file, an index of several, or a folder with one of them.
        state: This rank's shards. Only names that begin with "model." are filled.
        model: The run's model. The names in the file are then one device's, or Hugging Face's, if config.json, which is
            next to it, has the same settings. None: names are those of the state, whatever it is.

    Raises:
        ValueError: On every rank alike, before any tensor is changed: the file is damaged or of another model; names
            what is missing, left over, or of another shape, and tensors with NaN or infinite elements.
        OSError: On every rank alike: the file does not exist or cannot be read.
    """
    mine = {name.removeprefix(PREFIX): sharded for name, sharded in state.items() if name.startswith(PREFIX)}

    def shapes() -> tuple[Path, dict[str, Shape]]:
        check_shards(mine)
        found = hugging_face.located(Path(file))
        with _opened(found) as tensors:
            there = {name: tuple(opened.get_slice(name).get_shape()) for name, opened in tensors.items()}
        if model and (family := family_of(there)):
            _check_settings(found, family, model)
        return found, there

    file, there = same_on_all_ranks(shapes, None)
    asked = {name: tuple(sharded.shape) for name, sharded in mine.items()}
    # Of all ranks: one alone cannot tell which tensors are left over.
    everyone = {name: shape for each in gather_objects(asked) for name, shape in each.items()}
    family = family_of(there) if model else None
    places = family.places(everyone, there) if family else {name: Place(name) for name in everyone}
    if problems := _another_model(everyone, there, places, family):
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        about = f"; {hugging_face.sizes(family, there)}" if family else ""
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


def _check_settings(file: Path, family: Family, model: Model) -> None:
    """Compare a run's model with what shapes do not tell; a ValueError if it is another, or nothing tells."""
    config, sizes = file.with_name(hugging_face.CONFIG), model.sizes
    if config.is_file():
        if apart := hugging_face.different(hugging_face.options(config, sizes.positions), vars(sizes)):
            raise ValueError(f"{config} is of another model: {apart}")
    # What a preset has by default is no word on how many there are.
    elif family is LLAMA and model.heads is None and model.preset == type(model).preset:
        raise ValueError(
            f"{file} has no {hugging_face.CONFIG} next to it, and tensors do not tell how many heads there are: put it "
            "there; or give --heads and --kv-heads, and --norm-eps, --rope-base and --rope-factor if they are not "
            f"{sizes.norm_eps:g}, {sizes.rope_base:g} and {sizes.rope_factor:g}: others fit, too, and results are wrong"
        )


def _another_model(
    run: dict[str, Shape], there: dict[str, Shape], places: dict[str, Place], family: Family | None
) -> list[str]:
    """How the tensors of a file differ from those of a run, by the file's names."""
    expected = {places[name].name: places[name].shape(shape) for name, shape in sorted(run.items())}
    over = there.keys() - expected.keys()
    if family:
        over = {name for name in over if not family.left_out(name)}
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


@contextmanager
def _opened(file: Path) -> Iterator[dict[str, Any]]:
    """For each tensor the open file that has it: this one, or one of those that it lists as their index."""
    listed = hugging_face.parts(file) if file.suffix == ".json" else {file.name: None}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        for name, tensors in sorted(listed.items()):
            part = file.with_name(name)
            try:
                opened = stack.enter_context(safe_open(part, framework="pt"))
            except SafetensorError as error:
                raise ValueError(f"{part} is no sound safetensors file: {error}") from None
            # Each tensor in one file only, or which of them counts would be a matter of order.
            if tensors is not None and (wrong := {*opened.keys()} ^ {*tensors}):
                raise ValueError(f"{file} and {part} differ in which tensors are there: {', '.join(sorted(wrong)[:4])}")
            found |= dict.fromkeys(opened.keys(), opened)
        yield found


def _regions(file: Path, state: State, places: dict[str, Place]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each shard: its tensor's name, its memory, and what the file has for it, converted to the shard's dtype."""
    with _opened(file) as tensors:
        for name, sharded in state.items():
            at, whole = places[name], tuple(sharded.shape)
            for tensor, offsets in sharded.shards:
                # `region` counts along the first dimension, which such a tensor lacks.
                if not tensor.dim():
                    yield name, tensor, tensors[at.name].get_tensor(at.name).to(tensor.dtype)
                elif tensor.numel():
                    region = tensors[at.name].get_slice(at.name)[at.region(whole, offsets, tuple(tensor.shape))]
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
