"""`--supervise`: what fails is started again from the newest checkpoint and ends with the same bits, or is given up."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest

from minitrain.checkpointing.full import memory
from minitrain.composition.settings import Layout
from minitrain.ranks.ranks import Ranks
from minitrain.trainer import command, launch, metrics
from minitrain.trainer.supervise import SAME, supervise
from tests.drawn import first
from tests.trainer.test_trainer import asked, do

FAILING = "tests.trainer.failing"


def supervised(settings, requests, timeout=60.0):
    """As `launch` does it, with a loop that has faults."""

    def start():
        return Ranks(settings.layout.ranks, "cpu", timeout, check=False, hasty=True)

    def train(ranks, settings, failed):
        return max(ranks.run(launch.work, settings, FAILING, requests, os.getpid(), failed))

    return supervise(start, train, settings)


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs a supervised training with a fault; its status, and what it printed on standard error."""
    folders = []

    def start(settings, fault, timeout=60.0):
        folders.append(settings.run.folder)
        monkeypatch.setenv("FAULT", fault)
        capfd.readouterr()
        status = supervised(settings, launch.Requests(), timeout)
        return status, capfd.readouterr().err

    yield start
    for folder in folders:
        shutil.rmtree(memory.place(folder), ignore_errors=True)


def steps(settings):
    return [line["step"] for line in metrics.read(settings.run.folder / metrics.NAME) if "step" in line]


def sums(settings):
    """The checksums of what the last checkpoint has in tensors."""
    last = max((settings.run.folder / "checkpoints").iterdir())
    files = json.loads((last / "manifest.json").read_text())["files"]
    return {name: about for name, about in files.items() if name != ".metadata"}


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    settings = asked(tmp_path_factory.mktemp("undisturbed"), Layout(dp=2), steps=6)
    assert [status for status, *_ in ranks(2).run(do, settings)] == [0, 0]
    return sums(settings)


@pytest.mark.parametrize(
    "fault, told, timeout",
    first(
        [
            ("kill 1 5", "rank 1 died: ended by signal SIGKILL", 60.0),
            ("raise 1 3", "rank 1 failed: LookupError: no such sample", 60.0),
            ("memory 1 3", "rank 1 failed: MemoryError", 60.0),
            ("freeze 1 3", "rank 1 is stopped by a signal (SIGSTOP)", 3.0),
            ("wait 1 3", "rank 1 is waiting in tests/trainer/failing.py, line ", 3.0),
        ]
    ),
)
def test_a_fault_is_named_and_the_run_ends_as_without_it(run, undisturbed, tmp_path, fault, told, timeout):
    settings = asked(tmp_path, Layout(dp=2), steps=6, save_every=2)
    status, err = run(settings, fault, timeout)
    assert status == 0
    (line,) = err.splitlines()
    assert re.match(r"after step \d, restart 1: ", line) and told in line
    assert steps(settings) == [1, 2, 3, 4, 5, 6], "each once"
    assert sums(settings) == undisturbed


@pytest.mark.parametrize("fault, told", [("kill", "died"), ("raise", "LookupError: no such sample")])
def test_a_failure_that_comes_back_ends_the_run(run, tmp_path, fault, told):
    settings = asked(tmp_path, Layout(dp=2), steps=6, save_every=2)
    status, err = run(settings, f"{fault} 1 3 always")
    assert status == 1
    *restarts, last = re.split(r"(?m)^(?=after step|gave up)", err)[1:]
    assert [line.startswith(f"after step 3, restart {n}: ") for n, line in enumerate(restarts, 1)] == [True] * (
        SAME - 1
    )
    assert last.startswith(f"gave up: {SAME} failures in a row after step 3") and told in last
    assert (settings.run.folder / "checkpoints" / "step-00000002").is_dir()


def test_a_loss_that_is_no_number_is_final(run, tmp_path):
    settings = asked(tmp_path, Layout(dp=2), lr=1e200, clip=0.0, optimizer="sgd", steps=9)
    status, err = run(settings, "kill 0 100")
    assert (status, err) == (1, "")


def test_what_is_overwritten_does_not_come_back(run, tmp_path):
    """Killed before the first checkpoint of its own, the run begins again, and not where an earlier run has ended."""
    settings = asked(tmp_path, Layout(dp=2), steps=6, save_every=4)
    assert run(settings, "kill 0 100")[0] == 0
    again = replace(settings, run=replace(settings.run, overwrite=True))
    status, err = run(again, "kill 1 2")
    assert status == 0 and err.startswith("after step 2, restart 1: ")
    lines = metrics.read(again.run.folder / metrics.NAME)
    assert steps(again) == [1, 2, 3, 4, 5, 6] and not any("resumed at" in line for line in lines)


def test_a_stop_that_comes_before_the_ranks(monkeypatch, tmp_path):
    """Asked to end while ranks are being started, they end before their next step, in order."""
    monkeypatch.setenv("FAULT", "kill 0 100")
    settings, requests = asked(tmp_path, Layout(dp=2), steps=6), launch.Requests()
    requests.stop.touch()
    try:
        assert supervised(settings, requests) == 0
    finally:
        requests.stop.unlink()
    assert steps(settings) == []


@pytest.mark.parametrize(
    "arguments, environment, told",
    [
        (["--supervise"], {}, "supervise=True starts ranks of its own; with torchrun use its --max-restarts"),
        ([], {"TORCHELASTIC_MAX_RESTARTS": "3"}, "torchrun would restart this run up to 3 times"),
        (
            ["--resume"],
            {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"},
            "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun",
        ),
    ],
)
def test_refused_under_torchrun(monkeypatch, tmp_path, capsys, arguments, environment, told):
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1"} | environment).items():
        monkeypatch.setenv(name, value)
    assert command.run("minitrain.train", [*arguments, "--runs", str(tmp_path)]) == 2
    assert told in capsys.readouterr().err
    assert os.listdir(tmp_path) == []
