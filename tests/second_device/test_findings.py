"""What was found on the second device stays mended; see `findings`."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import second_device
from tests.second_device import findings

ROOT = Path(__file__).parents[2]
WHO = "from minitrain.comm import World\nwith World.start() as w: print(w.device, w.backend, w.devices, flush=True)"

if reason := second_device.missing():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Any]]:
    """What each rank said of each finding."""
    command = [sys.executable, "-m", "tests.second_device.findings"]
    done = subprocess.run(command, cwd=ROOT, env=second_device.environment(2), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*findings.WITH_NCCL, *findings.SHARED])
def test_it_is_mended(found, name):
    assert found[name] == ["", ""], "\n".join(found[name])


def test_a_training_chooses_neither_by_itself(found):
    assert found["training"] == [[], []]


@pytest.mark.parametrize(("seen", "says"), [("01", "cuda:0 nccl 2"), ("00", "cuda:0 gloo 1")])
def test_ranks_that_see_one_gpu_each(seen, says):
    """As under Slurm's --gpus-per-task=1: by their UUIDs they are two GPUs, or one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank, gpu in enumerate(seen):
        mine = {"RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": gpu}
        environment = second_device.environment(2) | here | mine
        command = [sys.executable, "-c", WHO]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True))
    assert [process.communicate(timeout=500)[0] for process in started] == [says + "\n"] * 2
