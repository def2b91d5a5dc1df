"""Versions of a table for those who serve it: whole or not at all, in order, also while processes are killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from minitrain.recommender import serving
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import SGD, Adam
from minitrain.recommender.serving import Publisher, Replica
from minitrain.recommender.tables import Table


def update(table: Table, *ids: int) -> None:
    table.update(torch.tensor(ids), torch.ones(len(ids), table.dimension))


def same(replica: Replica, table: Table) -> bool:
    return all(torch.equal(one, other) for one, other in zip(replica.contents(), table.contents(), strict=True))


@pytest.mark.parametrize("place, torn", [(3, True), (110, True), (60, False), (-1, False)])
def test_a_damaged_version_is_told_once_and_the_one_before_served(tmp_path: Path, place: int, torn: bool):
    table = Table(4, Adam())
    publisher, replica = Publisher(table, tmp_path), Replica(tmp_path)
    update(table, 1, 2, 3)
    publisher.publish(1)
    replica.refresh()
    rows = table.lookup(torch.tensor([1, 2, 3]))
    update(table, 2)
    path = publisher.publish(2)
    whole = bytearray(path.read_bytes())
    if torn:
        path.write_bytes(whole[:place])
    else:
        whole[place] ^= 1
        path.write_bytes(whole)
    with pytest.warns(
        UserWarning, match=r"version-000000000002-after-000000000001 is damaged \(.*\): serving version 1"
    ):
        assert replica.refresh() == 1
    assert replica.damaged == path and torch.equal(replica.lookup(torch.tensor([1, 2, 3])), rows)
    assert replica.refresh() == 1  # and no second warning, which would be an error here
    update(table, 3)
    publisher.publish(3)
    assert replica.refresh() == 1, "3 comes after 2, which cannot be read"
    publisher.publish(4, full=True)
    assert [each.name for each in tmp_path.iterdir()] == ["version-000000000004"]
    assert replica.refresh() == 4 and same(replica, table) and replica.damaged is None


def test_rows_that_are_evicted_leave_the_replica_and_may_come_back(tmp_path: Path):
    table = Table(2, SGD(1.0), seed=1)
    publisher, replica = Publisher(table, tmp_path), Replica(tmp_path)
    update(table, 1, 2)
    update(table, 3)
    publisher.publish(0)
    assert publisher.evict(1) == 2
    update(table, 2)  # comes back before the next version
    publisher.publish(1)
    assert replica.refresh() == 1 and same(replica, table)
    assert replica.contents()[0].tolist() == [2, 3]
    two = torch.tensor([2])
    assert torch.equal(replica.lookup(two), start(two, 1, 2, table.scale) - 1.0)
    update(table, 3)
    publisher.publish(2)  # in which the row that came back rests
    assert replica.refresh() == 2 and same(replica, table) and len(replica) == 2


def test_a_full_disk_leaves_earlier_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = Table(2, SGD(1.0))
    publisher, replica = Publisher(table, tmp_path), Replica(tmp_path)
    update(table, 1)
    publisher.publish(0)
    update(table, 2)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(serving.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            publisher.publish(1)
    assert [path.name for path in tmp_path.iterdir()] == ["version-000000000000"]
    assert replica.refresh() == 0
    publisher.publish(1)
    assert replica.refresh() == 1 and same(replica, table)


WRITER = """
import sys, torch
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.serving import Publisher
from minitrain.recommender.tables import Table
table = Table(64, SGD(1.0))
publisher = Publisher(table, sys.argv[1])
ids = torch.arange(3000)
for version in range(100000):
    table.update(ids, torch.ones(3000, 64))  # all rows of a version are start − (version + 1)
    publisher.publish(version, full=version % 7 == 0)
"""


def test_a_reader_beside_a_writer_that_is_killed_never_sees_half_a_version(tmp_path: Path):
    """Each row is its first value minus the number of updates; a mixture of versions would show two numbers."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    replica, seen, ids = Replica(tmp_path), set(), torch.arange(3000)
    first = start(ids, 0, 64, 0.01)
    try:
        until = time.monotonic() + 60
        while len(seen) < 20 and time.monotonic() < until:
            if (version := replica.refresh()) in seen or version < 0:
                continue
            seen.add(version)
            apart = (replica.lookup(ids) - first + version + 1).abs().max()
            assert apart < 1e-6 * 64 * (version + 1)  # float32 rounds each of the subtractions
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert len(seen) == 20
    last = replica.refresh()
    assert (replica.lookup(ids) - first + last + 1).abs().max() < 1e-6 * 64 * (last + 1)
