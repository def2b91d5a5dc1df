"""The trainer's command line as its user starts it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import minitrain
from minitrain.trainer import command
from tests.processes import becomes, descendants

SMALL = "--layers 1 --hidden 16 --heads 2 --positions 16 --batch 4 --sample 5 --device cpu".split()


def start(*arguments, folder=None, by=(sys.executable,)):
    words = [*by, "-m", "minitrain.train", *arguments]
    root = os.path.dirname(minitrain.__path__[0])
    environment = {**os.environ, "PYTHONPATH": root, "COLUMNS": "100"}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=folder, env=environment)


def test_one_device_then_two_ranks_then_sigterm(tmp_path):
    """A whole run; it goes on in another layout; it is asked to stop, and has saved when it ends."""
    first = start(*SMALL, "--steps", "2", folder=tmp_path)
    out, err = first.communicate(timeout=500)
    assert first.returncode == 0, err
    assert "one device on 1 rank" in out and "where a step's time went" in out and "a sample:\nThe " in out
    again = start(*SMALL, folder=tmp_path)
    assert again.communicate(timeout=500)[1].startswith("runs/train has a run already, with step-00000002: ")
    assert again.returncode == 2
    resumed = start(*SMALL, "--steps", "1000000", "--dp", "2", "--resume", folder=tmp_path)
    grows(tmp_path, resumed)
    resumed.send_signal(signal.SIGTERM)
    out, err = resumed.communicate(timeout=500)
    assert resumed.returncode == 0, err
    assert "going on from runs/train/checkpoints/step-00000002, saved by one device" in out
    assert "saved; --resume goes on from there" in out
    assert len(list((tmp_path / "runs" / "train" / "checkpoints").iterdir())) == 2


def lines(folder):
    """What a run has written so far."""
    file = folder / "runs" / "train" / "metrics.jsonl"
    return file.read_text().splitlines() if file.exists() else []


def grows(folder, run, more=3):
    """Wait until a run has done some more steps."""
    wanted = more + len(lines(folder))
    assert becomes(lambda: len(lines(folder)) >= wanted or run.poll() is not None, 120), "no step in two minutes"
    assert run.poll() is None, run.communicate()


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files are."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")


@pytest.mark.slow("programs that train, are stopped and go on")
@needs_proc
def test_a_second_run_is_refused_and_sigterm_to_all_saves(tmp_path, temporary):
    first = start(*SMALL, "--dp", "2", "--steps", "1000000", "--save-every", "3", folder=tmp_path)
    grows(tmp_path, first, 6)
    others = [start(*SMALL, option, folder=tmp_path) for option in ("--overwrite", "--resume")]
    for other in others:
        out, err = other.communicate(timeout=500)
        assert other.returncode == 2, err
        assert f"runs/train is being written to by process {first.pid} on {socket.gethostname()}, since " in err
        assert "runs/train" not in out
    forkserver, *ranks = descendants(first.pid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGTERM)  # one alone does nothing
    grows(tmp_path, first)
    for process in (*ranks, forkserver, first.pid):  # as systemd and Slurm do
        os.kill(process, signal.SIGTERM)
    out, err = first.communicate(timeout=500)
    assert first.returncode == 0, err
    assert list(temporary.glob("minitrain-*")) == []
    assert "saved; --resume goes on from there" in out
    steps = [json.loads(line)["step"] for line in lines(tmp_path)[1:]]
    assert steps == [*range(1, len(steps) + 1)]
    kept = sorted(path.name for path in (tmp_path / "runs" / "train" / "checkpoints").iterdir())
    assert len(kept) == 2 and kept[-1] == f"step-{steps[-1]:08d}"


@pytest.mark.slow("programs that train, are stopped and go on")
def test_a_killed_program_leaves_a_folder_to_go_on_in(tmp_path, temporary):
    """The lock goes with the ranks, and nothing stays where temporary files are."""
    killed = start(*SMALL, "--steps", "1000000", "--save-every", "3", folder=tmp_path)
    grows(tmp_path, killed, 6)
    killed.kill()
    killed.communicate(timeout=500)  # till the last rank has closed its end
    again = start(*SMALL, "--steps", "1", "--resume", folder=tmp_path)
    out, err = again.communicate(timeout=500)
    assert again.returncode == 0, err
    assert "going on from runs/train/checkpoints/step-" in out and "steps are done" in out
    assert list(temporary.glob("minitrain-*")) == []


@pytest.mark.slow("programs that train, are stopped and go on")
@needs_proc
def test_ranks_end_with_torchrun(tmp_path):
    """They don't go on as orphans in a folder in which a --resume may have begun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = start(*SMALL, "--dp", "2", "--steps", "1000000", folder=tmp_path, by=torchrun)
    grows(tmp_path, run)
    ranks = descendants(run.pid)
    run.kill()
    try:
        out, err = run.communicate(timeout=500)  # till the last rank has closed its end
    except subprocess.TimeoutExpired:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        raise
    assert f"torchrun (process {run.pid}) is gone" in err
    assert not (tmp_path / "runs" / "train" / "checkpoints").exists()


@pytest.mark.slow("programs that train, are stopped and go on")
@needs_proc
def test_supervised_through_kills_and_signals(tmp_path, temporary):
    """A rank dies, then the process that forks ranks; SIGUSR1 saves, SIGTERM ends in order, and nothing is left."""
    run = start(*SMALL, "--dp", "2", "--steps", "1000000", "--save-every", "3", "--supervise", folder=tmp_path)
    grows(tmp_path, run, 6)
    os.kill(descendants(run.pid)[1], signal.SIGKILL)
    await_start(tmp_path, run, 2)
    os.kill(descendants(run.pid)[0], signal.SIGKILL)
    await_start(tmp_path, run, 3)
    checkpoints = tmp_path / "runs" / "train" / "checkpoints"
    for process in (*descendants(run.pid), run.pid):
        os.kill(process, signal.SIGUSR1)
    grows(tmp_path, run)
    run.terminate()
    out, err = run.communicate(timeout=500)
    assert run.returncode == 0, err
    assert ", restart 1: rank " in err and ", restart 2: " in err
    assert out.count("s after the failure") == 2 and out.count("as asked; going on") == 1
    assert "saved; --resume goes on from there" in out
    done = [line["step"] for line in map(json.loads, lines(tmp_path)) if "step" in line]
    assert done == [*range(1, len(done) + 1)] and max(checkpoints.iterdir()).name == f"step-{done[-1]:08d}"
    assert list(temporary.glob("minitrain-*")) == []


def await_start(folder, run, count):
    """Wait until a run has started for so many times, and has done a step."""

    def started():
        *_, last = found = lines(folder)
        return "".join(found).count('"settings"') >= count and '"loss"' in last

    assert becomes(lambda: started() or run.poll() is not None, 120), "no step in two minutes"
    assert run.poll() is None, run.communicate()


@pytest.mark.slow("programs that train, are stopped and go on")
@needs_proc
def test_torchrun_restarts_ranks(tmp_path, monkeypatch):
    """With gloo, ranks can only meet again if torchrun does not share its own store with them."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    options = ("--dp", "2", "--steps", "1000000", "--save-every", "3", "--resume")
    run = start(*SMALL, *options, folder=tmp_path, by=torchrun)
    grows(tmp_path, run, 6)
    os.kill(descendants(run.pid)[1], signal.SIGKILL)
    await_start(tmp_path, run, 2)
    os.kill(descendants(run.pid)[0], signal.SIGUSR1)  # any rank will do
    grows(tmp_path, run)
    run.terminate()
    out, err = run.communicate(timeout=500)
    assert "going on from runs/train/checkpoints/step-" in out and "as asked; going on" in out, err
    assert "saved; --resume goes on from there" in out


def test_a_dry_run_needs_no_torch():
    arguments = "--preset 175b --dp 16 --pp 12 --tp 8 --microbatches 8 --batch 1536 --dry-run".split()
    code = f"""
import runpy, sys
sys.argv[1:] = {arguments}
try:
    runpy.run_module("minitrain.train", run_name="__main__")
finally:
    assert "torch" not in sys.modules
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr
    assert "dp16×pp12×tp8" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--ranks 8", "takes 1 ranks, and there are 8; layouts of 8 ranks that fit: dp8, dp4×pp2, "),
        ("--tp 3", "heads=4 do not divide by tp=3; layouts of 3 ranks that fit: pp3"),
        ("--pp 2 --zero 3", "use zero=1"),
        ("--preset 175b", "--dry-run plans it"),
        ("--experts 4 --experts-per-token 2", "with router=switch (top_k, bias_balanced take it) can be planned"),
    ],
)
def test_what_does_not_fit(arguments, message, capsys):
    assert command.run("minitrain.train", arguments.split()) == 2
    assert message in capsys.readouterr().err


def test_under_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command.run("minitrain.train", ["--ranks", "4", "--dp", "4"]) == 2
    assert "ranks=4 does not match the 2 ranks that torchrun started" in capsys.readouterr().err
    assert command.run("minitrain.train", ["--dp", "4"]) == 2
    assert "takes 4 ranks, and there are 2; layouts of 2 ranks that fit: dp2, " in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    assert command.run("minitrain.train", ["--dp", "4"]) == 2
    assert not capsys.readouterr().err, "rank 0 has told"
