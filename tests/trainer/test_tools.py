"""generate, evaluate and export: the same in every layout, nothing but an answer, and nothing left in the folder."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import minitrain
from minitrain.comm.lock import Lock
from minitrain.composition.model import make_config
from minitrain.composition.settings import Layout
from minitrain.data.text import Text, windows
from minitrain.models.gpt import GPT
from minitrain.trainer import config, loaded, tools
from tests.trainer.test_trainer import MODEL, asked, do

LOOP = "minitrain.train"
TRAINED = Layout(dp=2, zero=1, microbatches=2)  # another layout than all in which it is read
TWO = [Layout(dp=2, zero=3), Layout(tp=2, sequence_parallel=True), Layout(pp=2, microbatches=2), Layout(cp=2)]


@pytest.fixture(scope="module")
def run(ranks, tmp_path_factory):
    """The folder of a run with two checkpoints, and the loss that it told last."""
    folder = tmp_path_factory.mktemp("tools")
    assert {found[0] for found in ranks(2).run(do, asked(folder, TRAINED, save_every=2))} == {0}
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return folder / "run", json.loads(lines[-1])["validation"]


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """The run's model on one device, from the file that it exports."""
    file = tmp_path_factory.mktemp("whole") / "weights"
    assert tools.export([str(run[0]), str(file)]) == 0
    gpt = GPT(make_config(MODEL)).double().eval()
    weights = load_file(file)
    gpt.load_state_dict({**weights, "head.weight": weights["embedding.tokens.weight"]})
    return gpt


def answers(world, find, asked, layouts):
    """For each layout, what `find` gives."""
    folder = Path(asked.run)
    return [find(world, asked, LOOP, tools.settings_of(folder, layout)) for layout in layouts]


def losses(world, folder, counts, layouts):
    """For each layout and number of windows, the mean loss."""
    found = []
    text = Text.load("reference")
    for layout in layouts:
        training, step = loaded.load(world, folder, LOOP, tools.settings_of(folder, layout))
        assert step == 4
        found.append([loaded.mean_loss(world, training, windows(text.validation, 16, count)) for count in counts])
        training.close()
    return found


def test_each_window_weighs_the_same_in_every_layout(ranks, run, whole):
    """Numbers of windows that ranks can share and others, also one."""
    counts, text = (1, 2, 3, 7, 12), Text.load("reference")
    right = []
    for number in counts:
        with torch.no_grad():
            right.append(float(whole(*windows(text.validation, 16, number))[1]))
    for found in ranks(2).run(losses, run[0], counts, TWO):
        assert found == [pytest.approx(right, abs=1e-12)] * len(found)


def test_the_loss_is_the_trainers_in_three_units(ranks, run):
    """It looks at 256 windows of the held-out text, as the trainer does."""
    asked = tools.Evaluate(str(run[0]), windows=256)
    for (found,) in ranks(2).run(answers, loaded.loss, asked, [Layout(tp=2)]):
        nats, perplexity, bits = map(float, re.findall(r"(\d+\.\d+)", found.splitlines()[0]))
        assert nats == pytest.approx(run[1], abs=1e-4)
        assert perplexity == pytest.approx(math.exp(run[1]), rel=1e-3)
        assert bits == pytest.approx(run[1] / math.log(2), abs=1e-4), "a token is a byte"
        assert f"after step 4 of {run[0]}, on 256 windows of 16 tokens held out of reference" in found


@pytest.mark.parametrize("format", ("minitrain", "hugging-face"))
def test_an_export_is_loaded_by_the_next_run(ranks, run, tmp_path, format, capfd):
    """In another layout, and with every bit."""
    file = tmp_path / ("weights.safetensors" if format == "minitrain" else "weights")
    assert tools.export([str(run[0]), str(file), "--format", format]) == 0
    assert capfd.readouterr().out == f"the weights after step 4 of {run[0]} in {file}\n"
    right = ranks(2).run(do, asked(run[0].parent, TRAINED, resume=True))[0][2]
    found = ranks(2).run(do, asked(tmp_path, Layout(tp=2), load=str(file), steps=0))[0][2]
    weights = [name for name in right if name.startswith("model.")]
    assert weights and all(torch.equal(found[name], right[name]) for name in weights)


def state_of(folder):
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def command(name, *arguments, folder, by=(sys.executable,)):
    words = [*by, "-m", f"minitrain.{name}", *arguments]
    root = os.path.dirname(minitrain.__path__[0])
    environment = {**os.environ, "PYTHONPATH": root}
    return subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment, timeout=500)


@pytest.mark.slow("programs of their own, by torchrun too")
def test_commands_on_ranks_of_their_own_and_torchruns(run, tmp_path):
    """While a training writes to the folder; the answer is all of the output, and nothing in the folder changes."""
    folder, before = str(run[0]), state_of(run[0])
    layout = ["--dp", "2", "--device", "cpu"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    held = tmp_path / "held"
    shutil.copytree(run[0], held)
    lock = Lock(held, os.getpid())
    said = [
        command("generate", folder, "--tokens", "9", "--seed", "3", "--device", "cpu", folder=tmp_path),
        command("generate", str(held), "--tokens", "9", "--seed", "3", *layout, folder=tmp_path),
        command("generate", folder, "--tokens", "9", "--seed", "3", *layout, folder=tmp_path, by=torchrun),
    ]
    lock.release()
    assert all(each.returncode == 0 for each in said), said
    assert len({each.stdout for each in said}) == 1 and said[0].stdout.startswith("The ") and not said[0].stderr
    found = command("export", folder, "weights", folder=tmp_path, by=torchrun)
    assert found.returncode == 0 and (tmp_path / "weights").stat().st_size, found.stderr
    assert state_of(run[0]) == before


def test_what_does_not_fit_is_refused_before_ranks_start(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = str(run[0])
    for name in ("without", "empty", "strange"):
        shutil.copytree(run[0], f"runs/{name}")
    Path("runs/without", config.NAME).unlink()
    shutil.rmtree("runs/empty/checkpoints")
    Path("runs/strange", config.NAME).write_text("[model]\nlayer = 3")
    for tool, words, message in (
        (tools.generate, ["nowhere"], "run='nowhere' is no folder; give a run's folder, such as runs/train"),
        (tools.export, ["empty", "out"], "run='empty' is no folder; did you mean runs/empty?"),
        (tools.generate, ["runs/without"], "runs/without has no run.toml with the run's settings; start the run once"),
        (tools.evaluate, ["runs/empty"], "runs/empty has no checkpoint yet"),
        (tools.evaluate, ["runs/strange"], "[model] has no layer; did you mean layers in [model]"),
        (tools.generate, [folder, "--tp", "4"], "heads=2 do not divide by tp=4; layouts of 4 ranks that fit: "),
        (tools.generate, [folder, "--prompt", ""], "prompt='' has nothing to continue"),
        (tools.generate, [folder, "--temperature", "nan"], "temperature=nan must be at least 0"),
        (tools.evaluate, [folder, "--windows", "0"], "windows=0 must be at least 1"),
        (tools.export, [folder, f"{folder}/run.toml"], "run.toml' exists and may be no weights; name another file"),
        (
            tools.export,
            [folder, "runs", "--format", "hugging-face"],
            "'runs' exists and is no empty folder; name a new",
        ),
        (tools.evaluate, ["n" * 300], "File name too long"),
    ):
        assert (tool(words) if tool is tools.export else tool(LOOP, words)) == 2
        assert message in capsys.readouterr().err, words
