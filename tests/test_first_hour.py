"""The first hour on GPUs: its commands can be started, each kind of surprise is seen, and the report names nobody."""

from __future__ import annotations

import getpass
import importlib.util
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.benchmarks import first_hour, kernels, watched
from minitrain.benchmarks.hour_steps import Figure, Step, steps
from minitrain.composition.settings import check
from minitrain.trainer import command
from tests import second_device

ROOT = Path(__file__).parents[1]
GPU, DEVICE = "NVIDIA H100 80GB HBM3", "H100 (second device)"
LOSS = Figure("loss", r"loss ([\d.]+)")


@pytest.mark.parametrize("real", (True, False))
@pytest.mark.parametrize("gpus", (1, 2, 6))
def test_every_step_can_be_started(gpus, real):
    planned = steps(gpus, real, "runs/first_hour/runs")
    names = [step.name for step in planned]
    assert len(set(names)) == len(names) > 25
    for number, step in enumerate(planned):
        words = step.command.split()
        assert not step.like or step.like in names[:number], step
        if words[0] != "nvidia-smi":
            assert importlib.util.find_spec(words[words.index("-m") + 1].rstrip("'")), step
        for option in ("--nproc-per-node", "--ranks"):
            given = int(words[words.index(option) + 1]) if option in words else 1
            assert given <= gpus or step.shares, step
        if "minitrain.train" in words:
            asked = command.read(words[words.index("minitrain.train") + 1 :])
            started = int(words[words.index("--nproc-per-node") + 1]) if words[0] == "torchrun" else asked.layout.ranks
            check(asked.model, asked.layout, asked.steps, started)
            assert first_hour.planned_bytes(words) > 0
    several = {"dp", "zero3", "axes", "zigzag", "lost", "supervised", "visible"}
    assert several <= set(names) if gpus > 1 else not several & set(names)


def python(code: str, name: str = "step", **more) -> Step:
    return Step(name, "what it shows", f'python -c "{code}"', **{"backend": "", **more})


@pytest.fixture
def hour(tmp_path, monkeypatch, capsys):
    """`hour(steps, *options, gpu=…)` runs steps in an empty folder; returns the status, the outcomes and the report."""

    def run(planned, *options, gpu=DEVICE):
        monkeypatch.setattr(first_hour, "steps", lambda *_: planned)
        monkeypatch.setattr(first_hour, "machine", lambda: {"gpus": 2, "gpu": gpu, "torch": "2.13.0"})
        status = first_hour.main(list(options))
        folder = tmp_path / "runs" / "first_hour"
        told = json.loads((folder / "report.json").read_text())
        return status, {row["step"]: row for row in told["steps"]}, (folder / "report.md").read_text()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watched, "GRACE", 1.0)
    before = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, before)


TABLE = "print('x   n   8   9   counted   NO (fails on rank 1)'); raise SystemExit(1)"
SURPRISES = {
    "it ended with status 3": python("raise SystemExit(3)"),
    "it had not ended after 1 s": python("import time; time.sleep(60)", limit=1),
    "a claim does not hold: x n 8 9 counted NO (fails on rank 1)": python(TABLE),
    "its tensors were not carried by nccl": python("print('2 ranks, gloo on H100')", backend="nccl"),
    "it ended before anything was killed": python("raise SystemExit(1)", kills="program", at="step 10", fails=True),
    "its last loss is 2.6, and that of before 2.5": python("print('loss 2.6')", figures=(LOSS,), like="before"),
    "1 of its processes were left after 1 s": python(
        "import subprocess; subprocess.Popen(['sleep', '50'], start_new_session=True); import time; time.sleep(1)"
    ),
}


@pytest.mark.parametrize("expected", SURPRISES)
def test_a_surprise_stops_the_hour(hour, expected):
    before, after = python("print('2 ranks, nccl on H100, loss 2.5')", "before", figures=(LOSS,)), python("", "after")
    status, found, report = hour([before, SURPRISES[expected], after])
    assert status == 1
    assert {name: row["surprise"] for name, row in found.items()} == {"before": "", "step": expected}
    assert f"| step | what it shows | {expected} |" in report
    assert "1 of 3 steps as expected, 0 left out, 1 not run; a surprise in step." in report
    assert not [process for process in watched.descendants(os.getpid()) if "sleep" in words_of(process)]


def words_of(process: watched.Process) -> str:
    try:
        return Path(f"/proc/{process[0]}/cmdline").read_text()
    except OSError:
        return ""


def test_only_some_steps_and_no_stop(hour):
    planned = [
        python("print('tokens/s 7')", "a", figures=(Figure("tokens/s", r"tokens/s (\d+)"),)),
        python("raise SystemExit(1)", "b"),
        python("", "c"),
    ]
    status, found, _ = hour(planned, "--go-on")
    assert status == 1 and list(found) == ["a", "b", "c"] and found["b"]["surprise"]
    status, found, report = hour([planned[0], python("", "b"), planned[2]], "--only", "b")
    assert status == 0 and list(found) == ["a", "b", "c"] and not found["b"]["surprise"], (
        "the others stay in the report"
    )
    assert found["a"]["figures"] == {"tokens/s": 7} and "tokens/s: 7" in report
    assert first_hour.main(["--only", "d"]) == 2


def test_figures_are_judged_on_gpus_alone(hour):
    slow = python("print('MFU 3 %')", figures=(Figure("MFU, %", r"MFU (\d+) %", 15, 70),))
    status, _, report = hour([slow])
    assert status == 0 and report.startswith("# On the second device: no figure here is a GPU's")
    status, found, report = hour([slow], gpu=GPU)
    assert status == 1 and found["step"]["surprise"] == "MFU, % is 3, and was expected between 15 and 70"
    assert report.startswith(f"# The first hour on 2 × {GPU}")


@pytest.fixture
def says(tmp_path, monkeypatch):
    """`says(line, …)` is what nvidia-smi answers from then on."""

    def answer(*lines):
        script = tmp_path / "nvidia-smi"
        script.write_text("\n".join(["#!/bin/sh", *(f"echo {line}" for line in lines)]) + "\n")
        script.chmod(script.stat().st_mode | stat.S_IEXEC)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return answer


def test_a_process_on_two_gpus_is_seen(hour, says, monkeypatch):
    says("$PPID, GPU-0", "$PPID, GPU-1")
    monkeypatch.setattr(watched, "ASKED", 0.0)
    status, found, _ = hour([python("import time; time.sleep(1)")], gpu=GPU)
    assert status == 1 and found["step"]["figures"] == {"GPUs of one process": 2}
    assert watched.most_gpus("") == watched.most_gpus("No running processes found") == 0


def test_what_is_killed_and_how_long_the_rest_takes(hour):
    code = "import subprocess; print('step 10', flush=True); raise SystemExit(subprocess.call(['sleep', '60']))"
    gone = Figure("seconds", r"all processes had ended ([\d.]+) s after the kill")
    _, found, _ = hour([python(code, kills="rank", at="step 10", fails=True, figures=(gone,))])
    assert not found["step"]["surprise"] and found["step"]["figures"]["seconds"] < 30


def test_what_cannot_be_run_is_left_out(hour, monkeypatch):
    _, found, report = hour([python("", "a", needs="no-such-program"), python("", "b")])
    assert found["a"]["left_out"] == "there is no no-such-program" and "left out: there is no no-such-program" in report
    assert "it needs 1000000 GB of shared memory" in first_hour.take(python("", memory=10**6), {}, {}, Path()).left_out
    exclusive = {"gpu": GPU, "compute_mode": "Exclusive_Process"}
    assert "cannot share" in first_hour.take(python("", shares=True), exclusive, {}, Path()).left_out


def test_a_report_names_no_user_machine_or_folder(hour, tmp_path):
    secrets = [str(tmp_path), str(Path.home()), "/usr/lib/python3", "10.1.2.3", socket.gethostname()]
    secrets += [] if getpass.getuser() == "root" else [getpass.getuser()]
    said = " ".join(
        [
            f"{tmp_path}/minitrain/zero/full/stage1.py",
            f"{Path.home()}/x.py",
            "/usr/lib/python3/a.py:7",
            "10.1.2.3:29500",
            socket.gethostname(),
            "https://pytorch.org/docs 127.0.0.1",
        ]
    )
    _, _, report = hour([python(f"print('{said}'); raise SystemExit(1)")])
    assert (
        "\nminitrain/zero/full/stage1.py …/x.py …/a.py:7 (address):29500 (machine) https://pytorch.org/docs 127.0.0.1\n"
        in report
    )
    output = report.split("```text")[1]
    assert not [secret for secret in secrets if secret in output]


@pytest.mark.parametrize("wrong", (1.1, float("nan")))
def test_a_wrong_kernel_is_seen(monkeypatch, capsys, wrong):
    assert kernels.main() == 0 and "NO" not in capsys.readouterr().out
    right = kernels.grouped
    monkeypatch.setattr(kernels, "grouped", lambda *arguments: wrong * right(*arguments))
    assert kernels.main() == 1
    assert [line[:8] for line in first_hour.NO.findall(capsys.readouterr().out)] == ["bfloat16"]


def test_without_a_gpu_it_says_how_to_get_one(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, "-m", "minitrain.first_hour"]
    run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 2 and not list(tmp_path.iterdir())
    assert re.search(r"python -m tests\.second_device --gpus 2 -m minitrain\.first_hour", run.stderr)


def on_the_second_device(folder: Path, *names: str) -> dict[str, dict]:
    """Some steps on the second device; no surprise there is any in itself."""
    if reason := second_device.missing():
        pytest.skip(reason)
    words = [sys.executable, "-m", "minitrain.first_hour", "--only", *names]
    run = subprocess.run(words, cwd=folder, env=second_device.environment(2), capture_output=True, text=True)
    report = (folder / "runs" / "first_hour" / "report.md").read_text()
    assert run.returncode == 0, run.stdout + run.stderr + report
    assert report.startswith("# On the second device: no figure here is a GPU's")
    told = json.loads((folder / "runs" / "first_hour" / "report.json").read_text())["steps"]
    assert [row["step"] for row in told] == [*names] and not any(row["left_out"] for row in told)
    return {row["step"]: row["figures"] for row in told}


def test_a_minute_of_it_on_the_second_device(tmp_path):
    found = on_the_second_device(tmp_path, "dp")["dp"]
    assert {"loss", "tokens/s", "MFU, %", "GB of memory", "memory over the dry run's"} <= found.keys(), found
    assert found["dp, % of a step that is measured"] > 0


@pytest.mark.slow("trainings that are killed")
def test_kills_on_the_second_device(tmp_path):
    found = on_the_second_device(tmp_path, "killed", "supervised")
    assert found["killed"]["s until all processes had ended"] < first_hour.LAST
    assert found["supervised"]["s from the failure to the next step"] > 0
