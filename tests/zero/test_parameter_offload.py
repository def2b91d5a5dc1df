"""Parameters on the host or in files train as one device does; a disk that is too small is an error on every rank."""

from __future__ import annotations

import resource
from pathlib import Path
from unittest import mock

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.lessons.zero.parameter_offload import Diary
from minitrain.zero import parameter_offload as technique
from minitrain.zero import stage3
from tests.zero import small


@pytest.mark.parametrize("size", (2, 3, 4))
def test_on_the_host_it_is_one_device(ranks, size):
    ranks(size).run(small.like_one_device, technique.ParameterOffload)


def in_files(world, folder):
    class InFiles(technique.ParameterOffload):
        def __init__(self, module, optimizer_class, **options):
            super().__init__(module, optimizer_class, folder=folder, **options)

    small.like_one_device(world, InFiles)


@pytest.mark.parametrize("size", (1, 2, 3))
def test_in_files_it_is_one_device(ranks, size, tmp_path):
    ranks(size).run(in_files, str(tmp_path))
    # A file for each rank and block; of the largest block, 42 elements of 8 bytes, in equal shards.
    assert len(list(tmp_path.iterdir())) == 3 * size
    for rank in range(size):
        assert (tmp_path / f"rank{rank}.block1").stat().st_size == 8 * -(-42 // size)


def same_bits(world, folder):
    """As stage 3's small form, bit by bit, with and without files; the thread is the real one."""
    models = [
        stage3.Zero3(small.chain(), torch.optim.AdamW, lr=0.01),
        technique.ParameterOffload(small.chain(), torch.optim.AdamW, lr=0.01),
        technique.ParameterOffload(small.chain(), torch.optim.AdamW, folder=folder, lr=0.01),
    ]
    for step in range(3):
        outputs = [small.backward(model, small.batch(world.rank, step)) for model in models]
        assert all(torch.equal(output, outputs[0]) for output in outputs)
        for model in models:
            model.step()
            model.zero_grad()
        for each in zip(*(model.units for model in models), strict=True):
            assert all(torch.equal(unit.shard, each[0].shard) for unit in each)


def test_the_bits_are_those_of_stage_3(ranks, tmp_path):
    for size in (1, 2, 4):
        ranks(size).run(same_bits, str(tmp_path))


def order(world):
    model = technique.ParameterOffload(small.chain(), torch.optim.SGD, lr=0.1)
    diary = Diary(model)
    small.backward(model, small.batch(world.rank, 0))
    # The next block's fetch comes before the end of this one's work; at the turn, the last block is fetched again.
    forward = [("fetch", 0), ("fetch", 1), ("free", 0), ("fetch", 2), ("free", 1), ("free", 2)]
    backward = [("fetch", 2), ("fetch", 1), ("free", 2), ("fetch", 0), ("free", 1), ("free", 0)]
    assert diary.events == forward + backward
    assert all(unit.flat.untyped_storage().nbytes() == 0 for unit in model.units)


def test_blocks_are_fetched_one_ahead_in_order_of_use(ranks):
    ranks(2).run(order)


def too_large(world, folder, full):
    """Only some ranks' disks are full; every rank raises, and no file is left."""
    write = Path.write_bytes

    def full_disk(path, content):
        if world.rank in full:
            raise OSError(28, "No space left on device")
        return write(path, content)

    with mock.patch.object(Path, "write_bytes", full_disk):
        with Ledger() as ledger, pytest.raises(OSError) as error:
            technique.ParameterOffload(small.chain(), torch.optim.SGD, folder=folder, lr=0.1)
    assert [entry.operation for entry in ledger.entries] == [
        "all_reduce"
    ]  # of the one number that says whether it fits
    return str(error.value)


@pytest.mark.parametrize("full", ((0,), (1,), (0, 1)))
def test_a_file_that_does_not_fit_the_disk_is_refused_on_every_rank(ranks, tmp_path, full):
    messages = ranks(2).run(too_large, str(tmp_path), full)
    # Shards of 15, 21 and 4 elements of 8 bytes.
    for rank, message in enumerate(messages):
        assert f"folder={str(tmp_path)!r} cannot hold 320 bytes" in message and "another disk, or more ranks" in message
        assert ("No space left" in message) == (rank in full)
    assert not list(tmp_path.iterdir())


def really_too_large(world, folder):
    """The system refuses files of more than 100 bytes."""
    model = technique.ParameterOffload(small.chain(), torch.optim.SGD, lr=0.1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match=r"cannot hold 632 bytes \(.*File too large"):
            technique.map_files(model.units, folder, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_disk_itself_says_that_it_is_full(ranks, tmp_path):
    ranks(1).run(really_too_large, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_named(ranks, tmp_path):
    with pytest.raises(Exception, match="No such file or directory"):
        ranks(2).run(in_files, str(tmp_path / "nowhere"))
