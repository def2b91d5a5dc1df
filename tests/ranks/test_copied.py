"""A demo that is started from the command line forks its own program, and none of its processes outlives it."""

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
ENVIRONMENT = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR", "MINITRAIN_START": "fork"}

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="a program that has loaded torch is not forked there")


@pytest.mark.parametrize("way", ["end", "kill"])
def test_none_outlives_the_program(way):
    command = [sys.executable, "-c", PROGRAM, way]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == (-signal.SIGKILL if way == "kill" else 0), ended.stderr
    assert not ended.stderr
    server, *ranks, first, second, folder = ended.stdout.split()
    assert (first, second) == ("False", "False")
    pids = [int(pid) for pid in (server, *ranks)]
    assert len(pids) == 3 and becomes(lambda: not any(map(alive, pids)))
    assert not Path(folder).exists()
