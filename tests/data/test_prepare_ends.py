"""However `prepare` ends, its processes end with it, within seconds; and only one at a time writes into a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitrain.data import prepare
from minitrain.data.tokenizer import train
from tests.processes import becomes

WORDS = " ".join(f"word{number}" for number in range(2000)).encode() + b"\n"


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(("tokenizer", "end"), [("file", "SIGINT"), ("file", "SIGKILL"), ("bpe", "SIGINT")])
def test_all_processes_end(tmp_path: Path, capsys, tokenizer: str, end: str):
    (tmp_path / "a.txt").write_bytes(WORDS * (40_000_000 // len(WORDS)))
    train(iter([WORDS]), 500, tmp_path / "file")
    out, tokenizer = tmp_path / "out", "bpe" if tokenizer == "bpe" else str(tmp_path / "file")
    line = [str(tmp_path / "a.txt"), "--out", str(out), "--tokenizer", tokenizer, "--processes", "2"]
    command = [sys.executable, "-m", "minitrain.prepare", *line]
    with (tmp_path / "said").open("w") as said:
        run = subprocess.Popen(command, start_new_session=True, stdout=said, stderr=said)
    try:
        if tokenizer == "bpe":
            assert becomes(lambda: (out / "plan.json").exists(), 30)
            time.sleep(1.5)
        else:
            assert becomes(lambda: len([*out.glob(".training-*.tokens.*.part")]) == 2, 30)
        assert prepare.main(line) == 2
        assert f"{out} is being written to by process {run.pid} on " in capsys.readouterr().err
        if end == "SIGINT":
            os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to all of them
            assert run.wait(10) == 130
            told = "interrupted; the same command goes on with what is left\n"
            assert (tmp_path / "said").read_text() == told
            assert not [*out.glob(".*.part")]
        else:
            run.kill()
            run.wait(10)
        assert becomes(lambda: gone(run.pid), 10)
    finally:
        if not gone(run.pid):
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def test_a_process_that_is_killed():
    with pytest.raises(OSError, match="a process was killed, perhaps by the system, for want of memory: use fewer"):
        prepare._on_processes(2, os._exit, [(9,)])  # as SIGKILL does, it ends without a word
