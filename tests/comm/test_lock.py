"""The lock of a run's folder: one has it, its death frees it, and a file system without locks keeps nobody out."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from minitrain.comm.lock import NAME, Lock

# Takes the lock, starts a child that outlives it, and waits.
HOLDER = """
import os, sys, time
from pathlib import Path
from minitrain.comm.lock import Lock
lock = Lock(Path(sys.argv[1]), 4711)
if not os.fork():
    time.sleep(60)
    os._exit(0)
print("taken", flush=True)
time.sleep(60)
"""


def test_one_has_it_until_its_death(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "taken\n"
        with pytest.raises(ValueError) as raised:
            Lock(tmp_path / "run", 1)
        said = str(raised.value)
        assert said.startswith(f"{tmp_path}/run is being written to by process 4711 on {socket.gethostname()}, since ")
        assert "--name" in said and f"remove {tmp_path}/run/{NAME}" in said
        holder.kill()
        holder.wait()
        Lock(tmp_path / "run", 1).release()  # though the child lives, as a compiler's worker may
        said = (tmp_path / "run" / NAME).read_text()
        assert said.startswith("process 1 on ") and said.count("\n") == 1  # and nothing of the longer text before
    finally:
        os.killpg(holder.pid, signal.SIGKILL)  # the child is still there


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("somebody's")
    (tmp_path / NAME).symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match=NAME):
        Lock(tmp_path, 1)
    assert (tmp_path / "other").read_text() == "somebody's"
