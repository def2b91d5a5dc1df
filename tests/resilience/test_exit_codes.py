"""What to do after an exit code and a log."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from minitrain.resilience.exit_codes import REPLACE, RETRY, STOP, verdict

FELL = "NVRM: Xid (PCI:0000:3b:00): 79, pid=123, name=python, GPU has fallen off the bus."
FAULT = "NVRM: Xid (PCI:0000:3b:00): 31, pid=123, name=python, Ch 00000008"


def test_success():
    assert verdict(0) == (STOP, "done")
    assert verdict(0, FAULT) == (STOP, "done")
    # The next run on this node would fail.
    assert verdict(0, FELL)[0] == REPLACE


def test_a_broken_gpu_comes_before_everything_else():
    for log in (FELL, f"{FAULT}\n{FELL}", f"{FELL}\n{FAULT}"):
        assert verdict(137, log) == (REPLACE, "GPU has fallen off the bus")
    assert verdict(1, FAULT)[0] == RETRY


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
def test_a_death_is_the_same_in_a_shell_and_without(number):
    code = subprocess.run([sys.executable, "-S", "-c", f"import os; os.kill(os.getpid(), {number.value})"]).returncode
    assert verdict(code) == verdict(128 + number)
    assert verdict(code)[0] == RETRY
