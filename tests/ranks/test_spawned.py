"""Ranks that are started as new processes, as on macOS, behave like those that are forked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minitrain.ranks import Ranks, forkserver, processes
from minitrain.ranks.ranks import RanksError

pytestmark = pytest.mark.slow("each rank imports torch")


@pytest.fixture(scope="module")
def two() -> Iterator[Ranks]:
    before, processes._forkserver = processes._forkserver, None
    forkserver.PRELOAD.remove("tests.preload")  # what forks should not import again would be imported by each rank
    os.environ["MINITRAIN_START"] = "spawn"
    try:
        with Ranks(2, device="cpu") as started:
            yield started
    finally:
        del os.environ["MINITRAIN_START"]
        processes._forkserver = before
        forkserver.PRELOAD.append("tests.preload")


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="there is no /proc")
def test_each_rank_is_a_program_of_its_own_and_is_kept(two, capsys):
    two.execute("import os; total = torch.ones(1); dist.all_reduce(total); print(int(total)); pid = os.getpid()")
    assert "[all ranks] 2" in capsys.readouterr().out
    pids = two["pid"]
    assert all("begin(" in program_of(pid) for pid in pids), "started anew, not forked"
    two.execute("again = os.getpid()")
    assert two["again"] == pids


def test_a_deadlock_is_reported(two):
    with pytest.raises(RanksError, match=r"rank 0 in receive\(source=1\) \(<cell 0>, line 1\), for rank 1"):
        two.execute("dist.recv(torch.zeros(1), 1 - rank)", name="<cell 0>")  # then ranks start again
    two.execute("x = rank")
    assert two["x"] == [0, 1], "they are there again"
