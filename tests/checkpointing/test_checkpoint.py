"""Checkpoints: any layout loads what any other saved, and whatever happened, the newest sound one is found."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import shutil
import signal
import time
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from minitrain.checkpointing import checkpoint
from minitrain.checkpointing.checkpoint import load, newest, save
from minitrain.checkpointing.full import manifest
from minitrain.checkpointing.full.shards import Shard, ShardedTensor, flat_regions, flat_shards, tiles
from minitrain.comm import Peak
from minitrain.ranks.failures import RanksError
from minitrain.zero import Partition

SHAPES = {"model.matrix": (5, 4, 3), "model.row": (7,), "model.empty": (0, 3), "optimizer.exp_avg.matrix": (5, 4, 3)}
DTYPES = {"model.row": torch.bfloat16, "optimizer.exp_avg.matrix": torch.float64}


def one_device(fill=True):
    """The whole tensors, each element a number of its own."""
    made = {}
    for number, (name, shape) in enumerate(SHAPES.items()):
        values = torch.arange(math.prod(shape)).view(shape) + 100 * number
        made[name] = (values if fill else torch.full(shape, -1)).to(DTYPES.get(name, torch.float32))
    made["optimizer.step"] = torch.tensor(17 if fill else -1)
    return made


def cut(world, way, fill=True):
    """A rank's state: alike on all ranks, by rows, by columns (with gaps in memory), or shards of a flat line."""
    tensors = one_device(fill)
    state = {}
    partition = Partition({name: tensor.shape for name, tensor in tensors.items()}, world.size)
    segments = {segment.name: segment for segment in partition.segments(world.rank)}
    for name, tensor in tensors.items():
        sharded = ShardedTensor(tuple(tensor.shape), tensor.dtype, [])
        dim = {"rows": 0, "columns": tensor.dim() - 1}.get(way, 0)
        if way == "lines":
            segment = segments.get(name)
            if segment is None:
                continue  # as a pipeline stage that lacks the parameter
            sharded.shards = flat_shards(
                tensor.flatten()[segment.start : segment.stop].clone(), tensor.shape, segment.start
            )
        elif way == "alike" or tensor.dim() == 0:
            tensor.requires_grad_(way == "alike" and tensor.is_floating_point())  # as parameters do
            sharded.shards, sharded.writes = [Shard(tensor, (0,) * tensor.dim())], world.rank == world.size - 1
        else:
            parts = tensor.tensor_split(world.size, dim)
            offset = sum(part.shape[dim] for part in parts[: world.rank])
            offsets = tuple(offset if d == dim else 0 for d in range(tensor.dim()))
            sharded.shards = [Shard(parts[world.rank], offsets)]  # a view of the whole tensor
        state[name] = sharded
    return state


def same(state):
    """Every shard is what one device has in its place."""
    expected = one_device()
    for name, sharded in state.items():
        for tensor, offsets in sharded.shards:
            region = tuple(slice(o, o + s) for o, s in zip(offsets, tensor.shape, strict=True))
            assert torch.equal(tensor, expected[name][region]), name


def read_by_torch(world, folder, ways):
    """Torch's own reader of whole checkpoints takes what each way of cutting has saved."""
    for step, way in enumerate(ways):
        path = save(folder, step, cut(world, way), {})
        if world.rank == 0:
            dcp_to_torch_save(path, folder / "whole.pt")
            whole = torch.load(folder / "whole.pt", weights_only=True)
            wanted = {name: tensor for name, tensor in one_device().items() if tensor.numel()}
            assert whole.keys() == wanted.keys()
            assert all(torch.equal(whole[name], wanted[name]) for name in wanted)


def test_torch_reads_what_any_layout_saved(ranks, tmp_path):
    ranks(3).run(read_by_torch, tmp_path, ("alike", "rows", "columns", "lines"))


def saved(world, folder, way, steps):
    return [save(folder, step, cut(world, way), {"step": step}) for step in steps]


def loaded(world, folder):
    """The step that `newest` finds, None without one, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = newest(folder)
    if path is None:
        return None, [str(each.message) for each in caught]
    state = cut(world, "lines", fill=False)
    extra = load(path, state, check=False)
    same(state)
    return extra["step"], [str(each.message) for each in caught]


def test_more_and_fewer_ranks(ranks, tmp_path):
    ranks(3).run(saved, tmp_path, "lines", [5])
    assert ranks(1).run(loaded, tmp_path) == [(5, [])]
    ranks(1).run(saved, tmp_path, "alike", [6])
    assert ranks(2).run(loaded, tmp_path) == [(6, [])] * 2


def flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_a_flipped_byte_anywhere_is_found(ranks, tmp_path):
    ranks(2).run(saved, tmp_path, "rows", [1, 2])
    files = sorted((tmp_path / "step-00000002").iterdir())
    assert [file.name for file in files] == [".metadata", "__0_0.distcp", "__1_0.distcp", "manifest.json"]
    for file in files:
        before = file.read_bytes()
        flip(file)
        (step, said), (other, silent) = ranks(2).run(loaded, tmp_path)
        assert (step, other, silent) == (1, 1, [])
        assert len(said) == 1 and file.name in said[0] and "is damaged" in said[0]
        file.write_bytes(before)
    assert ranks(2).run(loaded, tmp_path) == [(2, [])] * 2


def test_missing_and_short_files_are_named(ranks, tmp_path):
    ranks(2).run(saved, tmp_path, "rows", [1, 2])
    last = tmp_path / "step-00000002"
    (last / "__0_0.distcp").unlink()
    (last / "__1_0.distcp").write_bytes(b"short")
    (step, said), _ = ranks(2).run(loaded, tmp_path)
    assert step == 1 and "__0_0.distcp is missing" in said[0] and "__1_0.distcp has 5 bytes instead of" in said[0]
    (last / "manifest.json").unlink()
    (step, said), _ = ranks(2).run(loaded, tmp_path)
    assert step == 1 and "manifest.json is missing, so the checkpoint is not complete" in said[0]
    shutil.rmtree(tmp_path / "step-00000001")
    assert ranks(2).run(loaded, tmp_path)[1] == (None, [])
    assert ranks(2).run(loaded, tmp_path / "nowhere") == [(None, [])] * 2


def killed(world, folder, at):
    """Save step 2 again, and be killed by the system on the way."""
    rename = Path.rename

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def die_between_two(path, target):
        return die() if path.suffix == checkpoint.UNFINISHED else rename(path, target)

    if at == "rename":  # the one that is replaced has gone aside
        Path.rename = die_between_two
    else:
        setattr(manifest, at, die)
    save(folder, 2, cut(world, "alike"), {"step": 2, "again": True})


@pytest.mark.parametrize(
    ("at", "leaves"),
    (
        ("checksum", ["step-00000001", "step-00000002", "step-00000002.unfinished"]),
        ("write", ["step-00000001", "step-00000002", "step-00000002.unfinished"]),
        ("rename", ["step-00000001", "step-00000002.replaced", "step-00000002.unfinished"]),
    ),
)
def test_killed_while_saving(ranks, tmp_path, at, leaves):
    ranks(1).run(saved, tmp_path, "alike", [1, 2])
    with pytest.raises(RanksError, match="SIGKILL"):
        ranks(1).run(killed, tmp_path, at)
    assert sorted(path.name for path in tmp_path.iterdir()) == leaves
    assert ranks(2).run(loaded, tmp_path) == [(2, [])] * 2
    ranks(2).run(saved, tmp_path, "rows", [3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def set_clock(folder, hours):
    """As if all had been written so many hours from now."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (time.time() + 3600 * hours,) * 2)


def test_clocks_play_no_part(ranks, tmp_path):
    """The clock was set back by an hour; then the folder is copied by something that begins with the latest."""
    ranks(2).run(saved, tmp_path, "rows", [10, 20])
    set_clock(tmp_path, 1)
    assert ranks(2).run(saved, tmp_path, "rows", [30, 40])[0][-1].exists()
    assert names(tmp_path) == ["step-00000030", "step-00000040"]
    for hours, step in enumerate((40, 30)):
        set_clock(tmp_path / f"step-000000{step}", hours)
    assert ranks(2).run(loaded, tmp_path) == [(40, [])] * 2


def saved_with(world, folder, step, keep):
    """Save with so many kept; the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert save(folder, step, cut(world, "rows"), {"step": step}, keep).exists()
    return [str(each.message) for each in caught]


def test_going_on_before_a_damaged_one(ranks, tmp_path):
    """After a damaged step 300 a run goes on from 200: 250 is then the newest, and no sound one goes for 300."""
    two = ranks(2)
    for step in (100, 200, 300):
        two.run(saved_with, tmp_path, step, 3)
    flip(tmp_path / "step-00000300" / "__1_0.distcp")
    assert two.run(loaded, tmp_path)[1] == (200, [])
    said, silent = two.run(saved_with, tmp_path, 250, 2)
    assert silent == [] and len(said) == 1 and "step-00000300 is later than step 250" in said[0]
    assert names(tmp_path) == ["step-00000200", "step-00000250", "step-00000300.passed-over"]
    assert two.run(loaded, tmp_path) == [(250, [])] * 2
    assert two.run(saved_with, tmp_path, 350, 2) == [[], []]
    assert names(tmp_path) == ["step-00000250", "step-00000300.passed-over", "step-00000350"]


def test_links_are_not_followed_and_block_nothing(ranks, tmp_path):
    folder, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    ranks(2).run(saved, folder, "rows", [1, 2])
    elsewhere.mkdir()
    (elsewhere / "dear").write_text("to somebody")
    (folder / "step-00000001").rename(tmp_path / "older")
    for name, target in (
        ("step-00000001", tmp_path / "older"),
        ("step-00000003.unfinished", elsewhere),
        ("step-00000003.replaced", elsewhere),
        ("step-00000002.old.unfinished", elsewhere),
        ("step-00000003", tmp_path / "nowhere"),
    ):
        (folder / name).symlink_to(target)
    for step in (3, 4, 5):
        assert ranks(2).run(saved_with, folder, step, 2) == [[], []]
        assert ranks(2).run(loaded, folder) == [(step, [])] * 2
    assert names(folder) == ["step-00000004", "step-00000005"]
    assert names(elsewhere) == ["dear"] and "manifest.json" in names(tmp_path / "older")


def refused(world, folder):
    """Bad states are refused alike on every rank, with nothing written and no tensor changed."""
    path = save(folder, 1, cut(world, "rows"), {})
    on_one = {"a": ShardedTensor((2,), torch.float32, [Shard(torch.zeros(2 + world.rank), (0,))])}
    half = {"a": ShardedTensor((4,), torch.float32, [Shard(torch.zeros(1), (world.rank,))])}
    twice = {"a": ShardedTensor((2,), torch.float32, [Shard(torch.zeros(2), (0,))])}
    over = {"a": ShardedTensor((4,), torch.float32, [Shard(torch.zeros(2), (world.rank,))])}
    same = {"a": ShardedTensor((4,), torch.float32, [Shard(torch.zeros(2), (0,))])}
    for state, extra, error, match in (
        (on_one, {}, ValueError, r"a: a shard of shape \(3,\) at \(0,\) does not lie in \(2,\)"),
        (half, {}, ValueError, "a: the ranks would write 2 elements of 4; write each of them once"),
        (twice, {}, ValueError, "a: the ranks would write 4 elements of 2"),
        (over, {}, ValueError, r"^a: shards of shape \(2,\) at \(0,\) and of shape \(2,\) at \(1,\) overlap; write"),
        (same, {}, ValueError, r"^a: shards of shape \(2,\) at \(0,\) and of shape \(2,\) at \(0,\) overlap; write"),
        ({}, {"x": {1}}, ValueError, "is no JSON"),
        ({}, {"x": world.rank}, ValueError, "differ between ranks"),
    ):
        with pytest.raises(error, match=match):
            save(folder, 2, state, extra)
    for change, match in (
        (lambda state: state.update(more=twice["a"]), "of another model: it lacks more"),
        (lambda state: state.pop("model.row"), "of another model: the run has no model.row"),
        (lambda state: state.update({"model.row": twice["a"]}), r"model.row is \(\(7,\), 'bfloat16'\) in it and"),
    ):
        state = cut(world, "rows", fill=False)
        change(state)
        with pytest.raises(ValueError, match=match):
            load(path, state)
        assert all(bool((shard.tensor <= 0).all()) for sharded in state.values() for shard in sharded.shards)
    dist.barrier()
    if world.rank == 0:
        flip(path / "__1_0.distcp")
    dist.barrier()
    with pytest.raises(ValueError, match="__1_0.distcp is damaged"):
        load(path, cut(world, "rows"))
    with pytest.raises(ValueError, match="step=-1 must be at least 0 and keep=2 at least 1"):
        save(folder, -1, {}, {})
    return newest(folder)


def test_refusals(ranks, tmp_path):
    assert ranks(2).run(refused, tmp_path) == [None, None]


class Bomb:
    """A pickle that would write a file when it is loaded."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def foreign(world, folder):
    path = save(folder, 1, cut(world, "rows"), {})
    (path / ".metadata").write_bytes(pickle.dumps(Bomb(folder / "executed")))
    content = manifest.read(path)
    files = {**content.files, ".metadata": manifest.checksum(path / ".metadata")}
    manifest.write(path, manifest.Manifest(1, files, {}))
    with pytest.raises(ValueError, match="has no place in a list of tensors, and was not imported"):
        load(newest(folder), cut(world, "rows"))
    return (folder / "executed").exists()


def test_nothing_in_a_folder_is_executed(ranks, tmp_path):
    assert ranks(1).run(foreign, tmp_path) == [False]


def beyond_the_file(listed):
    index, info = next(iter(listed.storage_data.items()))
    listed.storage_data[index] = replace(info, offset=10**6)


def shifted(listed):
    chunks = next(iter(listed.state_dict_metadata.values())).chunks
    chunks[0] = replace(chunks[0], offsets=chunks[1].offsets)


def nowhere(listed):
    listed.storage_data = None


WRONG = {
    beyond_the_file: r"\.metadata looks for \S+ from byte 1000000 to \d+ of __0_0.distcp, which has \d+; use another",
    shifted: r"\.metadata has regions of \S+ that do not make up its shape",
    nowhere: r"\.metadata is no list of tensors",
    lambda listed: [1]: r"\.metadata is no list of tensors",
}


def wrong_lists(world, folder):
    path = save(folder, 1, cut(world, "rows"), {})
    content, good = manifest.read(path), (path / ".metadata").read_bytes()
    for change, says in WRONG.items():
        dist.barrier()
        if world.rank == 0:
            listed = pickle.loads(good)
            (path / ".metadata").write_bytes(pickle.dumps(change(listed) or listed))
            files = {**content.files, ".metadata": manifest.checksum(path / ".metadata")}
            manifest.write(path, manifest.Manifest(1, files, {}))
        dist.barrier()
        with pytest.raises(ValueError, match=says):
            load(path, cut(world, "rows"))


def test_a_list_of_tensors_that_is_wrong_is_refused_by_name(ranks, tmp_path):
    ranks(2).run(wrong_lists, tmp_path)


def test_regions_make_up_a_tensor_without_gaps_or_overlaps():
    for start, stop in itertools.combinations(range(25), 2):
        regions = [each for part in ((0, start), (start, stop), (stop, 24)) for each in flat_regions((2, 3, 4), *part)]
        assert tiles((2, 3, 4), regions)
        assert not tiles((2, 3, 4), regions[1:])
        (at, size), *others = regions
        assert not tiles((2, 3, 4), [((at[0] + 1, *at[1:]), size), *others])
    assert tiles((), [((), ())]) and not tiles((), [])


def peaks(world, folder):
    """Saving takes no memory besides the shards, or as much as those with gaps; loading, twice the largest region."""
    whole, found = torch.randn(800, 1200), []
    for dim in (0, 1):
        shard = whole.tensor_split(world.size, dim)[world.rank]
        offsets = (world.rank * shard.shape[0], 0) if dim == 0 else (0, world.rank * shard.shape[1])
        state = {"weight": ShardedTensor(tuple(whole.shape), whole.dtype, [Shard(shard, offsets)])}
        with Peak() as peak:
            path = save(folder, dim, state, {})
        found.append(peak.bytes - (0 if shard.is_contiguous() else shard.nbytes))
        with Peak() as peak:
            load(path, state)
        found.append(max(0, peak.bytes - 2 * shard.nbytes))
    return found


def test_what_saving_and_loading_take_besides_the_shards(ranks, tmp_path):
    for found in ranks(2).run(peaks, tmp_path):
        assert max(map(abs, found)) < 2 * 16 * 1024, found  # plans and outcomes of two ranks
