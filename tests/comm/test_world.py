"""How a rank learns who it is, and what it says when the circumstances do not fit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from minitrain.comm import World
from minitrain.comm.world import _backend

WHO = "from minitrain.comm import World\nwith World.start() as w: print(w, flush=True)"


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=60
    )


def test_alone_without_torchrun():
    assert python(WHO).stdout == "rank 0 of 1 on cpu (gloo)\n" or torch.cuda.is_available()


def test_a_port_in_use_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        here = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        ended = python(WHO, MASTER_PORT=port, **here)
    assert ended.returncode != 0
    assert f"could not meet at 127.0.0.1:{port}" in ended.stderr and "choose another with torchrun" in ended.stderr


@pytest.mark.parametrize(
    ("chosen", "backend"),
    [
        ("0 0, 0 1, 2 0, 2 1", "nccl"),  # two machines with two GPUs each
        ("0 GPU-a, 0 GPU-b", "nccl"),  # each rank sees a GPU of its own
        ("0 GPU-a, 0 GPU-a", "gloo"),  # both see the same one
        ("0 0, 0 1, 0 0", "gloo"),  # three ranks on two GPUs
        ("0 , 0 ", "gloo"),  # CPUs
    ],
)
def test_nccl_where_each_rank_has_a_gpu_of_its_own(chosen, backend):
    assert _backend([tuple(each.split(" ")) for each in chosen.split(", ")]) == backend


def test_machines_with_too_few_gpus_are_named():
    with pytest.raises(ValueError, match="ranks 0,1 have a GPU of their own and others have none"):
        _backend([("0", "0"), ("0", "1"), ("2", "0"), ("2", "0")])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "the environment has RANK but no WORLD_SIZE"),
        ({"device": "tpu"}, "device='tpu' is unknown"),
        ({"device": "cuda"}, "torch finds no GPU here; use device='cpu'"),
        ({"rehearse": "mpi"}, "rehearse='mpi' is unknown; use 'nccl', or leave it out"),
        ({"rank": 2, "size": 2}, "rank=2 is not one of size=2"),
    ],
)
def test_what_cannot_be_started_is_said(monkeypatch, tmp_path, asked, says):
    if not asked:
        monkeypatch.setenv("RANK", "0")
    if asked.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match=says):
        World.start(**asked, store=tmp_path / "store" if "rank" in asked else None)
