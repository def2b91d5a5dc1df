"""What another user of the machine writes for the ranks to read: it is neither decoded nor believed."""

from __future__ import annotations

import json
import pickle
import time
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import control
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import receive, send
from minitrain.comm.seal import LENGTH, Foreign, Seal
from minitrain.watch.board import SLICE, Board


class Evil:
    """Its pickle makes a file where it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_seal_is_opened_by_who_knows_the_secret_and_where_it_belongs():
    seal, same, other = Seal(b"a", b"b"), Seal(b"a", b"b"), Seal(b"a", b"c")
    sealed = seal.close("here", b"data")
    assert same.open("here", sealed) == b"data" and seal.open("", seal.close("", b"")) == b""
    wrong = [(other, "here", sealed), (same, "there", sealed), (same, "here", sealed[:-1]), (same, "here", b"")]
    wrong += [(same, "here", bytes([*sealed[:i], sealed[i] ^ 1, *sealed[i + 1 :]])) for i in range(len(sealed))]
    for who, name, data in wrong:
        with pytest.raises(Foreign, match="by no rank of this run"):
            who.open(name, data)


def forged(world, marker):
    """Rank 0 comes late; meanwhile another user has rewritten all notes, with pickles, numbers and old notes."""
    board = Board.current
    if world.rank == 0:
        stranger = dist.TCPStore(*board.address, is_master=False, wait_for_workers=False)
        own = stranger.get("process/0")
        for key, note in {
            "process/0": pickle.dumps(Evil(marker)),
            "waits/0": json.dumps([1, 2, 3]).encode(),
            "waits/1": bytes(LENGTH) + b"[[[",
            "ended/0": own,  # sealed, but for another place
            f"deadlock/{board.call}": b'"these ranks wait forever"',
            "waits/2": b"",
        }.items():
            stranger.set(key, note)
        assert [board.read(key) for key in ("process/0", "waits/0", "ended/0", "waits/2")] == [None] * 4
        assert not board.has("process/0") and board.has("process/1")
        time.sleep(4 * SLICE.total_seconds())  # the others look at the notes while they wait
        board.introduce()
    if world.rank == 1:
        receive(arrived := torch.zeros(3), 0).wait()
        assert arrived.tolist() == [1.0, 1.0, 1.0]
    if world.rank == 0:
        send(torch.ones(3), 1).wait()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size
    return not marker.exists()


def test_notes_of_others_are_neither_decoded_nor_believed(ranks, tmp_path):
    assert ranks(3).run(forged, tmp_path / "marker") == [True] * 3


@contextmanager
def stranger():
    """Send with another secret."""
    group = dist.group.WORLD
    with mock.patch.dict(control._seals, {group: Seal(b"another")}):
        yield


def foreign_values(world, marker):
    gather_objects(None)
    if world.rank == 1:
        with stranger(), pytest.raises(Foreign):
            gather_objects(Evil(marker))
    else:
        with pytest.raises(Foreign):
            gather_objects(bytes(control.FIRST))  # too long for a note
    return gather_objects(world.rank) == [0, 1, 2] and not marker.exists()


def test_a_gathered_value_of_another_is_not_unpickled(ranks, tmp_path):
    assert ranks(3).run(foreign_values, tmp_path / "marker") == [True] * 3
