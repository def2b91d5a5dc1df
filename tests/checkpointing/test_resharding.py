"""A tensor saved in any cut by any number of ranks is loaded in any other, bit by bit; a hole is found."""

from __future__ import annotations

import itertools
import zipfile

import pytest
import torch

from minitrain.checkpointing.resharding import load, save

SHAPE = (7, 5, 3)  # which neither 2 nor 4 ranks divide in any dim
WAYS = ("dim 0", "dim 1", "dim 2", "replicas")


def one_device():
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def cut(world, way):
    """This rank's shard, a view with gaps but for `dim 0`, and where it begins."""
    tensor, offsets = one_device(), [0, 0, 0]
    if way == "replicas":
        return tensor, offsets
    dim = int(way[-1])
    shards = tensor.tensor_split(world.size, dim)  # on 4 ranks one of dim 2 is empty
    offsets[dim] = sum(shard.shape[dim] for shard in shards[: world.rank])
    return shards[world.rank], offsets


def saving(world, folder):
    for way in WAYS:
        save(folder / way, *cut(world, way))


def loading(world, folder):
    for saved, way in itertools.product(WAYS, WAYS):
        expected, offsets = cut(world, way)
        shard = torch.full(expected.shape, torch.nan, dtype=torch.float64)
        assert load(folder / saved, shard, offsets) is shard
        assert torch.equal(shard, expected), (saved, way)


def test_of_a_view_only_its_own_numbers_are_saved(ranks, tmp_path):
    ranks(4).run(saving, tmp_path)
    files = [zipfile.ZipFile(file) for file in (tmp_path / "dim 1").iterdir()]
    entries = [entry for file in files for entry in file.infolist() if "/data/" in entry.filename]
    assert sum(entry.file_size for entry in entries) == one_device().nbytes


def test_files_of_an_earlier_save_by_more_ranks_do_not_count(ranks, tmp_path):
    ranks(4).run(saving, tmp_path)
    for file in tmp_path.glob("*/3.pt"):
        file.write_bytes(b"of another time")
    ranks(3).run(saving, tmp_path)
    ranks(2).run(loading, tmp_path)


def with_a_hole(world, folder):
    save(folder, one_device()[:4], (0, 0, 0))
    load(folder, torch.empty(4, 5, 3, dtype=torch.float64), (0, 0, 0))
    with pytest.raises(AssertionError, match=f"lacks {3 * 5 * 3} elements"):
        load(folder, torch.empty(SHAPE, dtype=torch.float64), (0, 0, 0))


@pytest.mark.parametrize("size", (2, 3))
def test_replicas_do_not_hide_a_hole(ranks, tmp_path, size):
    ranks(size).run(with_a_hole, tmp_path)
