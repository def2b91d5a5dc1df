"""Training with LAMB and LARS: the same in every layout that does not cut a layer, also after a resume in another."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from minitrain.composition.settings import Layout, Model, Settings, Steps, check
from minitrain.data.text import Samples, as_tensor
from minitrain.train import build, train_step

TINY = Model(layers=2, hidden=32, heads=2, positions=16)
TEXT = as_tensor(b"The quick brown fox jumps over the lazy dog, and the dog is lazy still. " * 20)
LAYOUTS = {
    "dp2": Layout(dp=2),
    "dp2, ZeRO 1": Layout(dp=2, zero=1),
    "dp2, ZeRO 2": Layout(dp=2, zero=2, microbatches=2),
    "dp2, ZeRO 3": Layout(dp=2, zero=3),
    "pp2": Layout(pp=2, microbatches=2),
}


def trained(world, layout, steps, count=4):
    training = build(Settings(TINY, layout, steps), world.device)
    samples = Samples(TEXT, TINY.sizes.positions)
    reports = [train_step(training, step, step * steps.batch, samples) for step in range(count)]
    training.close()
    return [(report.loss, report.norm) for report in reports]


@pytest.mark.parametrize("optimizer", ["lamb", "lars"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_same_curve_in_every_layout(ranks, layout, optimizer):
    steps = Steps(batch=4, warmup=0, lr=0.05, optimizer=optimizer, dtype="float64")
    (exact,) = ranks(1).run(trained, Layout(), steps)
    for found in ranks(2).run(trained, layout, steps):
        assert found == [pytest.approx(each, rel=1e-9) for each in exact]
    assert exact[-1] != exact[0]


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        (TINY, Layout(tp=2), "optimizer=lamb needs the norm of each whole layer, and tp=2 divides layers; use adamw"),
        (Model(layers=2, hidden=32, heads=2, experts=2), Layout(), "and experts=2 lie on several ranks; use adamw"),
    ],
)
def test_layouts_that_cut_layers_are_refused(model, layout, message):
    with pytest.raises(ValueError, match=message):
        check(model, layout, Steps(optimizer="lamb"))


def run(folder, *arguments):
    sizes = ("--positions", "16", "--hidden", "32", "--layers", "2", "--heads", "2", "--batch", "4", "--sample", "0")
    options = ("--optimizer", "lamb", "--lr", "0.02", "--runs", str(folder), "--steps", "6", "--dtype", "float64")
    command = [sys.executable, "-m", "minitrain.train", *sizes, *options, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr


def losses(folder, name):
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "step" in line}


def test_a_resume_in_another_layout_goes_on_as_if_nothing_had_been(tmp_path):
    import shutil

    run(tmp_path, "--name", "run", "--ranks", "2", "--dp", "2", "--zero", "1", "--save-every", "3", "--keep", "9")
    whole = losses(tmp_path, "run")
    (last,) = (tmp_path / "run" / "checkpoints").glob("step-*6")
    shutil.rmtree(last)
    run(tmp_path, "--name", "run", "--ranks", "2", "--pp", "2", "--microbatches", "2", "--resume")
    assert losses(tmp_path, "run") == pytest.approx(whole, rel=1e-9)
