"""A disk that is too small for parameters in files is an error on every rank. The lesson has the rest."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.zero import parameter_offload as technique


def too_large(world, folder, full):
    """Only some ranks' disks are full; every rank raises, and no file is left."""
    # Blocks of 30, 42 and 7 elements, which two ranks don't divide all.
    chain = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 7), nn.Linear(7, 1, False)).double()
    write = Path.write_bytes

    def full_disk(path, content):
        if world.rank in full:
            raise OSError(28, "No space left on device")
        return write(path, content)

    with mock.patch.object(Path, "write_bytes", full_disk):
        with Ledger() as ledger, pytest.raises(OSError) as error:
            technique.ParameterOffload(chain, torch.optim.SGD, folder=folder, lr=0.1)
    # Of the one number that says whether it fits.
    assert [entry.operation for entry in ledger.entries] == ["all_reduce"]
    return str(error.value)


@pytest.mark.parametrize("full", ((0,), (1,), (0, 1)))
def test_a_file_that_does_not_fit_the_disk_is_refused_on_every_rank(ranks, tmp_path, full):
    messages = ranks(2).run(too_large, str(tmp_path), full)
    # Shards of 15, 21 and 4 elements of 8 bytes.
    for rank, message in enumerate(messages):
        assert f"folder={str(tmp_path)!r} cannot hold 320 bytes" in message and "another disk, or more ranks" in message
        assert ("No space left" in message) == (rank in full)
    assert not list(tmp_path.iterdir())
