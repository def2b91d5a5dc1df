"""Ranks: calls and their output, failures and what is said of them, and that nothing stays behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minitrain.comm import World
from minitrain.ranks import Ranks
from minitrain.ranks.failures import Failure, report
from minitrain.ranks.processes import Processes
from minitrain.ranks.ranks import RanksError, RanksStopped
from minitrain.ranks.worker import SCHEDULED, working_time
from tests.processes import alive, becomes


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    """Ranks that a test may lose: they start again."""
    with Ranks(3, device="cpu") as started:
        yield started


# Calls and results


def scaled(world: World, tensor: torch.Tensor, factor: int = 1) -> tuple[int, torch.Tensor]:
    return world.rank, tensor * factor * world.rank


def test_expressions(three: Ranks) -> None:
    three.execute("mine = torch.tensor([rank]); dist.all_reduce(mine)")
    assert three["mine.item() + rank"] == [3, 4, 5]
    assert three["size, world.size, world.rank"] == [(3, 3, rank) for rank in range(3)]
    with pytest.raises(RanksError, match="SyntaxError"):
        three["mine ="]


@dataclass
class Point:
    x: int


def move(world: World, point: Point) -> Point:
    return Point(point.x + world.rank)


def test_a_module_run_as_a_program(three: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m package.module` calls its own module `__main__`; the ranks import it by its real name."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(__name__, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    # The program's own class, of which the module that the ranks import has another.
    mine: Any = dataclass(type("Point", (), {"__annotations__": {"x": int}, "__module__": "__main__"}))
    main.Point = mine  # type: ignore[attr-defined]
    monkeypatch.setattr(move, "__module__", "__main__")
    assert three.run(move, mine(4)) == [mine(4), mine(5), mine(6)]  # equal only if of the same class


def generator(world: World) -> Iterator[int]:
    return (i for i in range(3))


def test_results_that_cannot_be_sent(three: Ranks) -> None:
    with pytest.raises(RanksError, match="a result of type generator") as raised:
        three.run(generator)
    assert "worker.py" not in str(raised.value)
    three.execute("class OnlyThere:\n    pass")
    with pytest.raises(TypeError, match="exists on the ranks only"):
        three["OnlyThere()"]


def test_setup_runs_first_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Ranks(2, device="cpu", setup=prepare) as prepared:
        assert prepared["torch.prepared"] == [0, 1]
        prepared.restart()
        assert prepared["torch.prepared"] == [0, 1]


def prepare(world: World) -> None:
    torch.prepared = world.rank  # type: ignore[attr-defined]


# Output


def test_what_is_shown_of_a_cell(three: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    three.execute("kept = 5\nkept;")
    three.execute("None")
    three.execute("")
    assert capsys.readouterr().out == ""
    three.execute("kept + rank", ranks=[2, 0])
    assert capsys.readouterr().out == "[rank 0] 5\n[rank 2] 7\n"
    three.execute("print('no end', end='')")
    assert capsys.readouterr().out == "[all ranks] no end\n"
    three.execute("import sys; print('oh', file=sys.stderr)")
    assert capsys.readouterr() == ("", "[all ranks] oh\n")
    for wrong in ([3], [-1, 0], []):
        with pytest.raises(ValueError, match="the ranks 0 to 2"):
            three.execute("1", ranks=wrong)


# Failures


def test_all_fail_alike_and_live_on(three: Ranks) -> None:
    three.execute("kept = rank\ndef invert(x):\n    return 1 / x")
    with pytest.raises(RanksError) as raised:
        three.execute("import contextlib\nwith contextlib.ExitStack():\n    invert(0)")
    message = str(raised.value)
    assert message.startswith("all ranks failed:\nTraceback")
    assert "    invert(0)\n" in message and "    return 1 / x\n" in message  # lines of this and of an earlier cell
    assert message.endswith("ZeroDivisionError: division by zero")
    assert set(raised.value.failures) == {0, 1, 2}
    assert three["kept"] == [0, 1, 2]
    with pytest.raises(RanksError, match="SyntaxError"):
        three.execute("kept = = 1")
    assert three["kept"] == [0, 1, 2]


def test_a_rank_raises_and_others_wait(three: Ranks) -> None:
    three.execute("kept = 1")
    with pytest.raises(RanksError) as raised:
        three.execute("if rank == 1:\n    raise KeyError('mine')\ndist.recv(torch.zeros(1), 1)")
    lines = str(raised.value).splitlines()
    assert lines[:2] == ["rank 1 failed:", "Traceback (most recent call last):"]
    assert "KeyError: 'mine'" in lines
    assert lines[-2].startswith("ranks 0, 2 are waiting in <cell")
    assert lines[-2].endswith("line 3: dist.recv(torch.zeros(1), 1)")
    assert lines[-1] == "The ranks were restarted: their variables are gone."
    assert "line 3" in raised.value.failures[0] and "KeyError" in raised.value.failures[1]
    assert three["'kept' in globals()"] == [False] * 3
    with pytest.raises(RanksError, match="(?s)NameError.*run the cells that define them once more"):
        three.execute("print(kept)")


def test_one_fails_while_others_finish(three: Ranks) -> None:
    """Somebody may have sent what nobody received, and the next receive would take it: these ranks end as well."""
    three.execute("kept = 1")
    with pytest.raises(RanksError, match="^rank 2 failed"):
        three.execute("if rank == 2:\n    raise ValueError(3)")
    assert three["'kept' in globals()"] == [False] * 3


def inner(world: World) -> None:
    outer = torch.zeros(1)
    dist.recv(outer, (world.rank + 1) % world.size)  # everybody waits for the next


def test_a_deadlock_is_named_by_line(three: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    three.run(scaled, torch.ones(1))  # fresh ranks import this file first
    monkeypatch.setattr(three, "timeout", 0.5)
    with pytest.raises(RanksError, match="No rank made progress for 0.5 s") as raised:
        three.run(inner)
    line = inner.__code__.co_firstlineno + 2
    assert f"all ranks are waiting in tests/ranks/test_ranks.py, line {line}: dist.recv(" in str(raised.value)
    with pytest.raises(RanksError, match="for 1 s.\nrank 0 is waiting in <cell .*>, line 1: dist.recv"):
        three.execute("dist.recv(torch.zeros(1), 1)", ranks=[0], timeout=1.0)


def work(world: World, seconds: float) -> str:
    until = time.process_time() + seconds
    while time.process_time() < until:
        sum(range(1000))
    return "done"


def test_the_limit_spares_ranks_that_are_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call after a failure starts fresh ranks: here for a thousand seconds, by a clock that is set on."""
    with Ranks(1, device="cpu", timeout=60.0) as one:
        one._kill()
        start, later = one._start, [0.0]

        def slowly() -> Processes:
            started = start()
            later[0] = 1000.0
            return started

        monkeypatch.setattr(one, "_start", slowly)
        monkeypatch.setattr(
            "minitrain.ranks.ranks.time", SimpleNamespace(monotonic=lambda: time.monotonic() + later[0])
        )
        assert one.run(work, 0.0) == ["done"]


def starve(world: World) -> float:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core for both
    os.nice(0 if world.rank else 19)
    start, before = time.monotonic(), working_time()
    while time.monotonic() < start + 1.0:
        pass
    return (working_time() - before) / (time.monotonic() - start)


@pytest.mark.skipif(not Path(SCHEDULED).exists(), reason="only Linux says how long a thread waits for a core")
def test_a_rank_that_waits_for_its_turn_is_not_idle() -> None:
    with Ranks(2, device="cpu") as rivals:
        assert min(rivals.run(starve)) > 0.8


def test_stop_names_the_lines(three: Ranks) -> None:
    assert three["rank"] == [0, 1, 2]  # fresh ranks are there
    threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt) as raised:
        # Rank 1 is busy, and could still send: so this is no deadlock, however late the signal comes.
        three.execute("if rank == 0:\n    dist.recv(torch.zeros(1), 1)\nif rank == 1:\n    import time; time.sleep(60)")
    assert isinstance(raised.value, RanksStopped)
    assert str(raised.value).startswith("Stopped.\nrank 0 is waiting in <cell")
    assert "line 2: dist.recv(torch.zeros(1), 1)" in str(raised.value)
    assert three["rank"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ("os._exit(3)", "rank 1 died: ended with exit code 3"),
        ("os.abort()", "rank 1 died: ended by signal SIGABRT in <cell"),
    ],
)
def test_a_rank_dies(three: Ranks, end: str, says: str) -> None:
    three.execute("import os")
    with pytest.raises(RanksError) as raised:
        three.execute(f"if rank == 1:\n    {end}\ndist.recv(torch.zeros(1), 1)")
    assert str(raised.value).startswith(says)
    assert set(raised.value.failures) == {0, 1, 2}
    assert three["rank"] == [0, 1, 2]


def test_a_death_is_told_before_what_others_say_of_it() -> None:
    failed = {0: Failure("Traceback", at=1.0), 2: Failure("died: killed", died=True, at=1.1)}
    assert report("", failed, {}, 3)[0].startswith("rank 2 died: killed\nrank 0 failed")


def survive(world: World, dies: int, fails: int = -1) -> int:
    if world.rank == dies:
        os._exit(7)
    if world.rank == fails:
        raise ValueError("this rank fails")
    time.sleep(1.5)  # longer than others are given after a death that is none of their business
    return world.rank


def test_a_call_that_survives_a_death() -> None:
    with Ranks(3, device="cpu", survives=True) as mortal:
        assert mortal.run(survive, 1) == [0, None, 2]
        assert mortal.run(survive, -1) == [0, 1, 2], "fresh ranks"
        with pytest.raises(RanksError, match=r"(?s)^rank 1 died: ended with exit code 7.*rank 2 failed"):
            mortal.run(survive, 1, fails=2)
        with pytest.raises(RanksError, match="died: ended with exit code 7"):
            mortal.execute("import os\nif rank == 1: os._exit(7)")  # a cell does not


def test_a_fork_of_the_program_leaves_its_ranks_alone(three: Ranks) -> None:
    three.execute("kept = rank")
    if (fork := os.fork()) == 0:
        three.close()
        os._exit(0)
    os.waitpid(fork, 0)
    assert three["kept"] == [0, 1, 2]


def test_sigterm_is_for_the_program(three: Ranks) -> None:
    """Batch systems send it to all processes at once; the program then decides whether its ranks have work to save."""
    before = three["__import__('os').getpid(), __import__('os').getppid()"]  # the parent of a rank is the forkserver
    for process in {process for pair in before for process in pair}:
        os.kill(process, signal.SIGTERM)
    assert three["__import__('os').getpid(), __import__('os').getppid()"] == before


# Nothing stays behind, nothing listens


def test_ranks_listen_on_loopback_only(three: Ranks) -> None:
    if not Path("/proc/net/tcp").exists():
        pytest.skip("reads the sockets of processes from /proc")
    three.execute("dist.all_reduce(torch.ones(1))")
    sockets = set()
    for pid in three["__import__('os').getpid()"]:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            name = os.readlink(descriptor) if descriptor.is_symlink() else ""
            sockets |= {name.removeprefix("socket:[").rstrip("]")} if name.startswith("socket:[") else set()
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    listening = [line[1].split(":")[0] for line in lines if line[3] == "0A" and line[9] in sockets]
    assert listening and set(listening) == {"0100007F"}  # 127.0.0.1


@pytest.mark.parametrize("how", ["close", "collected"])
def test_ranks_end(how: str) -> None:
    started = Ranks(2, device="cpu")
    pids, folder = started["__import__('os').getpid()"], Path(started._processes.folder)  # type: ignore[union-attr]
    assert all(alive(pid) for pid in pids) and folder.exists()
    assert started._processes.end.atexit  # type: ignore[union-attr]  they also end with the program
    if how == "close":
        started.close()
        with pytest.raises(RuntimeError, match="closed"):
            started.run(scaled, torch.ones(1))
    else:
        del started
        gc.collect()
    assert becomes(lambda: not any(alive(pid) for pid in pids)) and not folder.exists()
