"""What the demo of `checkpoint` shows: a state cut in four ways, what is in the files, peaks, and what goes wrong."""

from __future__ import annotations

import io
import math
import resource
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from minitrain.checkpointing.checkpoint import load, newest, save
from minitrain.checkpointing.full import manifest
from minitrain.checkpointing.full.shards import Reader, Shard, ShardedTensor, State, flat_regions, flat_shards
from minitrain.comm import Peak, World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.lessons.claims import Claim, as_key, fold
from minitrain.lessons.composition.common import shared_folder
from minitrain.zero import Partition

LIBRARY = "torch.distributed.checkpoint"
WAYS = ("alike", "rows", "columns", "line")
MESSAGES = 16 * 1024  # bytes for each rank's plans and outcomes, on the rank that gathers them


def claims(world: World, hidden: int) -> list[Claim]:
    """All claims of the demo, in a folder that is removed at the end."""
    with shared_folder(world) as folder:
        return [
            *from_layout_to_layout(world, folder, hidden),
            regions(),
            *peaks(world, folder, 4 * hidden),
            accidents(world, folder, hidden),
        ]


def one_device(world: World, hidden: int) -> dict[str, Tensor]:
    """Two matrices, a bias in bfloat16, AdamW's states and a scalar, as one device would hold them."""
    generator = torch.Generator().manual_seed(hidden)
    shapes = {"in": (4 * hidden, hidden), "out": (hidden, 4 * hidden), "bias": (hidden + 1,)}
    tensors = {"optimizer.step": torch.tensor(7.0)}
    for kind in ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
        for name, shape in shapes.items():
            dtype = torch.bfloat16 if name == "bias" else torch.float32
            tensors[f"{kind}.{name}"] = torch.randn(shape, generator=generator).to(dtype)
    return {name: tensor.to(world.device) for name, tensor in tensors.items()}


def cut(world: World, tensors: dict[str, Tensor], way: str) -> State:
    """A rank's state: everything alike, rows, columns (views with gaps), or its shards of flat lines, as in ZeRO.

    Parameters lie in one line, and each of their states in another one that is cut alike.
    """
    if way == "line":
        state = {}
        for kind in dict.fromkeys(name.rpartition(".")[0] for name in tensors):
            shapes = {name: tensor.shape for name, tensor in tensors.items() if name.rpartition(".")[0] == kind}
            for name, start, stop, _ in Partition(shapes, world.size).segments(world.rank):
                shards = flat_shards(tensors[name].flatten()[start:stop].clone(), tensors[name].shape, start)
                state[name] = ShardedTensor(tuple(tensors[name].shape), tensors[name].dtype, shards)
        return state
    return {name: _part(world, tensor, way) for name, tensor in tensors.items()}


def _part(world: World, tensor: Tensor, way: str) -> ShardedTensor:
    sharded = ShardedTensor(tuple(tensor.shape), tensor.dtype, [])
    if way == "alike" or not tensor.dim():
        sharded.shards, sharded.writes = [Shard(tensor, (0,) * tensor.dim())], world.rank == 0
        return sharded
    dim = 0 if way == "rows" else tensor.dim() - 1
    parts = tensor.tensor_split(world.size, dim)
    offsets = [0] * tensor.dim()
    offsets[dim] = sum(part.shape[dim] for part in parts[: world.rank])
    sharded.shards = [Shard(parts[world.rank], tuple(offsets))]
    return sharded


def unlike(state: State, tensors: dict[str, Tensor]) -> int:
    """How many elements of all shards are not those that one device has in their places."""
    count = 0
    for name, sharded in state.items():
        for tensor, offsets in sharded.shards:
            region = tuple(slice(o, o + s) for o, s in zip(offsets, tensor.shape, strict=True))
            count += int((tensor != tensors[name][region]).sum())
    return count


def from_layout_to_layout(world: World, folder: Path, hidden: int) -> list[Claim]:
    """Claims that each way of cutting loads what each other saved, one rank alone too; and that all is written once."""
    tensors = one_device(world, hidden)
    every = [new_group([rank]) for rank in range(world.size)]
    alone = every[world.rank]
    assert isinstance(alone, dist.ProcessGroup)
    changed, payload = {}, 0
    for step, way in enumerate(WAYS):
        path = save(folder, step, cut(world, tensors, way), {"step": step}, keep=1)
        assert path is not None
        for other in WAYS:
            state = cut(world, {name: torch.full_like(tensor, -1) for name, tensor in tensors.items()}, other)
            load(path, state)
            changed[f"{way} to {other}"] = _equal(unlike(state, tensors))
        whole = {
            name: ShardedTensor(tuple(t.shape), t.dtype, [Shard(-t, (0,) * t.dim())]) for name, t in tensors.items()
        }
        load(path, whole, alone)  # one rank brings all parts together again
        changed[f"{way}, loaded by one rank alone"] = _equal(unlike(whole, tensors))
        payload = max(payload, bytes_of_tensors(path))
        gather_objects(None)  # all have read it before the next save removes it
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return as_key(
        fold("elements changed from each of 4 ways of cutting to each, and loaded by one rank alone", changed),
        Claim("bytes of tensors in the files, also where ranks hold the same", "S", size, payload, "B", LIBRARY),
    )


def _equal(different: int) -> Claim:
    return Claim("", "loaded = saved", 0, different, "elements", "derived", "compared")


def regions() -> Claim:
    """The claim on the most regions that a run of a flattened tensor makes up, of all runs, in 1 to 3 dimensions."""
    cases = {}
    for shape in ((3, 4, 5), (4, 5), (6,)):
        elements, dims = math.prod(shape), len(shape)
        runs = ((start, stop) for start in range(elements) for stop in range(start + 1, elements + 1))
        most = max(len(flat_regions(shape, *run)) for run in runs)
        cases[f"d = {dims}"] = Claim("", "2d − 1", 2 * dims - 1, most, "regions", "derived")
    return fold("most regions that a run of a flattened tensor makes up, d = 3, and fewer dims", cases)


def bytes_of_tensors(path: Path) -> int:
    """Bytes of numbers in a checkpoint's files: each region is a zip archive, numbers under `data/`."""
    total = 0
    for info in Reader(path, manifest.read(path).files).read_metadata().storage_data.values():
        with open(path / info.relative_path, "rb") as stream:
            stream.seek(info.offset)
            archive = zipfile.ZipFile(io.BytesIO(stream.read(info.length)))
        total += sum(entry.file_size for entry in archive.infolist() if "/data/" in entry.filename)
    return total


def peaks(world: World, folder: Path, hidden: int) -> list[Claim]:
    """Claims on the host memory that saving and loading take on top of the shards."""
    tensors = {name: tensor.cpu() for name, tensor in one_device(world, hidden).items()}
    messages = MESSAGES * world.size
    found = []
    for way, formula, what in (
        ("rows", "0 ± 16 KiB · n for plans", "contiguous on the host"),
        ("columns", "own bytes with gaps ± 16 KiB · n for plans", "with gaps in memory"),
    ):
        state = cut(world, tensors, way)
        shards = [shard.tensor for sharded in state.values() for shard in sharded.shards]
        own = sum(tensor.nbytes for tensor in shards)
        with Peak() as peak, world.timed(f"saving {own / 1e6:.1f} MB a rank, {what}"):
            save(folder, 100, state, {}, keep=1)
        copied = sum(tensor.nbytes for tensor in shards if not tensor.is_contiguous())
        text = f"most bytes besides its shards while a rank saves, {what}"
        found.append(Claim(text, formula, copied, peak.bytes, "B", "derived", absolute=messages))
    path = newest(folder)
    assert path is not None
    region = max(
        t.element_size() * -(-t.shape[-1] // world.size) * math.prod(t.shape[:-1]) for t in tensors.values() if t.dim()
    )
    state = cut(world, tensors, "line")
    with Peak() as peak, world.timed("loading it, cut as ZeRO does, checksums included"):
        load(path, state)
    text = "most bytes besides its shards while a rank loads"
    formula = "2 · the largest saved region ± 16 KiB · n for outcomes"
    return [*found, Claim(text, formula, 2 * region, peak.bytes, "B", "derived", absolute=messages)]


def accidents(world: World, folder: Path, hidden: int) -> Claim:
    """The claim on what `newest` finds after a full disk, and after one flipped bit, in the save of step 2."""
    folder = folder / "accidents"
    state = cut(world, one_device(world, hidden), "rows")
    save(folder, 1, state, {})
    after_full, after_flip = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they say what the claims count
        with small_files(world.rank == world.size - 1):
            path = save(folder, 2, state, {})
        if path is None and (found := newest(folder)):
            after_full = manifest.read(found).step
        path = save(folder, 2, state, {})
        assert path is not None
        if world.rank == 0:
            flip_a_bit(path / "__0_0.distcp")
        gather_objects(None)  # no other rank looks before it is done
        if found := newest(folder):
            after_flip = manifest.read(found).step
    cases = {
        name: Claim("", "the step before", 1, step, source="derived")
        for name, step in (("the disk was full", after_full), ("one bit was flipped", after_flip))
    }
    return fold("newest checkpoint where the disk was full in the save of step 2, or one bit flipped", cases, key=True)


@contextmanager
def small_files(wanted: bool) -> Iterator[None]:
    """If asked, this process can write no more than a KiB into a file: as good as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if wanted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def flip_a_bit(file: Path) -> None:
    """Flip one bit in the middle of a file."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def demo(world: World, hidden: int = 48) -> list[Claim]:
    """Saves a state cut by rows, loads it cut as ZeRO does; the table shows equal bits, bytes written, peaks, damage.

    Args:
        hidden: Width of the synthetic model.
    """
    return claims(world, hidden)
