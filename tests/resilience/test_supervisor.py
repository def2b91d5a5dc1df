"""Ranks that are started, killed, and started again; nothing is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from subprocess import Popen

import pytest

from minitrain.resilience.supervisor import save, supervise


def plain(code, started):
    """Starts processes that run a line of Python; `{rank}` is theirs, `{number}` counts all."""

    def start(rank):
        text = "import sys, time; from sys import exit\n" + code.format(rank=rank, number=len(started))
        started.append(Popen([sys.executable, "-S", "-E", "-c", text], stderr=subprocess.DEVNULL))
        return started[-1]

    return start


@pytest.mark.parametrize("most", [1, 3])
def test_a_crash_that_repeats_at_one_step(most):
    started = []
    with pytest.raises(RuntimeError, match=rf"gave up: {most} crashes at step 5, the last of Crash\(rank=0, code=3"):
        supervise(plain("exit(3 * ({number} < 9))", started), 1, lambda: 5, most=most)  # not forever
    assert len(started) == most


class Ended:
    """A process that has ended before anyone looks."""

    def __init__(self, code):
        self.poll = lambda: code

    def kill(self): ...

    def wait(self): ...


def test_of_two_that_have_ended_the_one_that_was_killed_is_named():
    codes = iter([1, -9, 0, 0])
    (crash,) = supervise(lambda rank: Ended(next(codes)), 2, lambda: 4)
    assert (crash.rank, crash.code, crash.step) == (1, -9, 4)


def test_a_checkpoint_is_complete_or_absent(tmp_path):
    path = tmp_path / "checkpoint.json"
    save(path, lambda new: new.write_text(json.dumps(1)))

    def killed(new):
        new.write_text("2 and")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(path, killed)
    assert json.loads(path.read_text()) == 1
