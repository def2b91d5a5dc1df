"""Weights from and for elsewhere: the reference reader agrees, ranks get their regions, and bad files are refused."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from minitrain.checkpointing.checkpoint import save
from minitrain.checkpointing.full.weights import export_safetensors, import_safetensors
from tests.checkpointing.test_checkpoint import Bomb, cut, flip, one_device, same


def model(tensors):
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


def saved(world, folder):
    return save(folder, 3, cut(world, "lines"), {})


def test_export_is_what_the_reference_reads(ranks, tmp_path):
    path = ranks(3).run(saved, tmp_path)[0]
    export_safetensors(path, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors")
    expected = {name: tensor for name, tensor in model(one_device()).items() if tensor.numel()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert {name: tensor.dtype for name, tensor in found.items()} == {n: t.dtype for n, t in expected.items()}
    flip(path / "__1_0.distcp")
    with pytest.raises(ValueError, match="__1_0.distcp is damaged"):
        export_safetensors(path, tmp_path / "other.safetensors")
    assert not list(tmp_path.glob("other*"))


def imported(world, file, way):
    state = cut(world, way, fill=False)
    import_safetensors(file, state)
    same({name: sharded for name, sharded in state.items() if name.startswith("model.")})
    rest = [
        shard.tensor for name, sharded in state.items() if not name.startswith("model.") for shard in sharded.shards
    ]
    return all(bool((tensor == -1).all()) for tensor in rest)


@pytest.mark.parametrize("way", ("alike", "rows", "columns", "lines"))
def test_each_rank_reads_its_boxes(ranks, tmp_path, way):
    tensors = {**model(one_device()), "row": model(one_device())["row"].double()}  # converted to bfloat16
    save_file(tensors, tmp_path / "model.safetensors")
    if way == "lines":
        del tensors["empty"]  # no rank has a shard of it
        save_file(tensors, tmp_path / "model.safetensors")
    assert ranks(2).run(imported, tmp_path / "model.safetensors", way) == [True, True]


def refused(world, folder, expected):
    for name, match in expected.items():
        state = cut(world, "rows", fill=False)
        with pytest.raises((ValueError, OSError), match=match):
            import_safetensors(folder / name, state)
        assert all(bool((shard.tensor <= 0).all()) for sharded in state.values() for shard in sharded.shards)


def test_refusals(ranks, tmp_path):
    tensors = model(one_device())
    save_file({**tensors, "more": torch.zeros(1)}, tmp_path / "more")
    save_file({"row": tensors["row"], "empty": tensors["empty"]}, tmp_path / "less")
    save_file({**tensors, "row": torch.zeros(8)}, tmp_path / "other")
    matrix = tensors["matrix"]
    save_file({**tensors, "matrix": matrix.index_fill(0, torch.tensor(4), math.nan)}, tmp_path / "nan")  # rank 1's rows
    save_file({**tensors, "row": tensors["row"].double() * -1e300}, tmp_path / "too large")  # for bfloat16
    (tmp_path / "pickle").write_bytes(pickle.dumps(Bomb(tmp_path / "executed")))
    (tmp_path / "short").write_bytes((tmp_path / "more").read_bytes()[:-1])
    expected = {
        "more": "is of another model: the run has no more",
        "less": "is of another model: it lacks matrix",
        "other": r"row has shape \(8,\) in it and \(7,\) in the run",
        "nan": "nan has NaN or infinite elements in matrix; give weights that are all finite numbers",
        "too large": "too large has NaN or infinite elements in row; give",
        "pickle": "is no sound safetensors file",
        "short": "is no sound safetensors file",
        "nowhere": "No such file",
    }
    ranks(2).run(refused, tmp_path, expected)
    assert not (tmp_path / "executed").exists()
