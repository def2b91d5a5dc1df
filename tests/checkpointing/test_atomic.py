"""Atomic checkpoints: killed anywhere, damaged anyhow, on a full disk and in a folder that cannot be written."""

from __future__ import annotations

import errno
import os
import shutil

import pytest

from minitrain.checkpointing import atomic
from minitrain.lessons.checkpointing.atomic import content
from minitrain.lessons.checkpointing.disk import Disk, Killed, on


def test_what_is_saved_is_loaded_and_the_latest_stay(tmp_path):
    for step in range(4):
        atomic.save(tmp_path, step, content(step, 2), keep=2)
    assert atomic.load(tmp_path) == (3, content(3, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("operation", range(12))
def test_the_next_save_removes_what_a_killed_one_has_left(tmp_path, operation):
    with pytest.raises(Killed), on(Disk(operation)):
        atomic.save(tmp_path, 1, content(1, 2))
    atomic.save(tmp_path, 2, content(2, 2), keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def damaged(path, how):
    file = path / "0.bin"
    if how == "flipped byte":
        file.write_bytes(bytes([file.read_bytes()[0] ^ 4]) + file.read_bytes()[1:])
    elif how == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "missing":
        file.unlink()
    elif how == "no manifest":
        (path / "manifest").unlink()
    elif how == "truncated manifest":
        lines = (path / "manifest").read_bytes().split(b"\n")
        (path / "manifest").write_bytes(b"\n".join(lines[1:]))


@pytest.mark.parametrize(
    ("how", "said"),
    (
        ("flipped byte", "0.bin is damaged: its checksum"),
        ("truncated", "0.bin has 5 bytes instead of 6"),
        ("missing", "0.bin is missing"),
        ("no manifest", "manifest is missing"),
        ("truncated manifest", "manifest is damaged"),
    ),
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_loaded(tmp_path, how, said):
    newest = [atomic.save(tmp_path, step, content(step, 2)) for step in (1, 2)][-1]
    damaged(newest, how)
    assert said in atomic.damage(newest)
    assert atomic.load(tmp_path) == (1, content(1, 2))
    shutil.rmtree(tmp_path / "step-00000001")
    with pytest.raises(FileNotFoundError, match=said):
        atomic.load(tmp_path)


@pytest.mark.parametrize("code", (errno.ENOSPC, errno.EROFS))
def test_a_full_disk_and_a_read_only_folder_leave_the_last_checkpoint(tmp_path, monkeypatch, code):
    atomic.save(tmp_path, 1, content(1, 2))

    def refuses(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync") if code == errno.ENOSPC else (os, "mkdir")), refuses)
        with pytest.raises(OSError, match=os.strerror(code)):
            atomic.save(tmp_path, 2, content(2, 2))
    assert atomic.load(tmp_path) == (1, content(1, 2))
    atomic.save(tmp_path, 3, content(3, 2), keep=5)  # there is room again, and nothing is in its way
    assert len(list(tmp_path.iterdir())) == 2


def test_bad_input(tmp_path):
    with pytest.raises(FileNotFoundError, match="it is empty"):
        atomic.load(tmp_path)
    with pytest.raises(AssertionError, match="keep=0"):
        atomic.save(tmp_path, 1, content(1, 1), keep=0)
    with pytest.raises(AssertionError, match="files"):
        atomic.save(tmp_path, 1, {})
    atomic.save(tmp_path, 1, content(1, 1))
    with pytest.raises(AssertionError, match="exists; remove it"):
        atomic.save(tmp_path, 1, content(1, 1))
