"""A demo that is started from the command line forks its own program, and nothing else changes by that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import alive, becomes

PROGRAM = """
import os, signal, sys
import torch
from minitrain.ranks import Ranks, processes
server = processes.forkserver(fork=True)
assert processes.forkserver() is server
ranks = Ranks(2, device="cpu")
loaded = "'torch._dynamo' in __import__('sys').modules"
print(server.process.pid, *ranks["__import__('os').getpid()"], *ranks[loaded], ranks._processes.folder, flush=True)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""
DEMO = """
import runpy, sys
class Listing:
    def find_spec(self, name, path=None, target=None):
        with open(listed, "a") as file:
            print(name, file=file)
listed = sys.argv.pop(1)
sys.meta_path.insert(0, Listing())  # in each process, since all are forks of this one
runpy.run_module("minitrain.collectives.ring", run_name="__main__", alter_sys=True)
"""
ENVIRONMENT = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR", "MINITRAIN_START": "fork"}

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a program that has loaded torch is not forked there")


@pytest.mark.parametrize("way", ["end", "kill"])
def test_none_outlives_the_program(way):
    command = [sys.executable, "-c", PROGRAM, way]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=110)
    assert ended.returncode == (-signal.SIGKILL if way == "kill" else 0), ended.stderr
    assert not ended.stderr
    server, *ranks, first, second, folder = ended.stdout.split()
    assert (first, second) == ("False", "False")
    pids = [int(pid) for pid in (server, *ranks)]
    assert len(pids) == 3 and becomes(lambda: not any(map(alive, pids)))
    assert not Path(folder).exists()


def test_torch_is_imported_once_and_its_compiler_not_at_all(tmp_path):
    listed = tmp_path / "imports"
    command = [sys.executable, "-c", DEMO, str(listed), "--ranks=2", "--elements=99", "--device=cpu"]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=110)
    assert ended.returncode == 0, ended.stderr
    imported = listed.read_text().split()
    assert imported.count("torch") == 1
    assert imported.count("minitrain.lessons.collectives.ring") == 1
    assert "torch._dynamo" not in imported
