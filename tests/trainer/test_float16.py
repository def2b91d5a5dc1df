"""Training in float16: overflows that all ranks skip, a scale that survives a resume, and losses of float32."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch

from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import NotFinite
from minitrain.data.text import Samples, as_tensor
from minitrain.train import build, train_step
from tests.drawn import first

TINY = Model(layers=2, hidden=32, heads=2, positions=16)
TEXT = as_tensor(b"The quick brown fox jumps over the lazy dog, and the dog is lazy still. " * 20)


def trained(world, layout, steps, count=5, scale=65536.0, spoil=()):
    """Reports and final weights; at the steps of `spoil` the last rank has infinite gradients in one matrix."""
    settings = Settings(TINY, layout, steps)
    training = build(settings, world.device)
    training.loss_scale.scale = scale
    samples, reports = Samples(TEXT, TINY.sizes.positions), []
    for step in range(count):
        if step in spoil and world.rank == world.size - 1:
            # An MLP's matrix, which tensor-parallel ranks divide; what they all have would be infinite on all of them.
            matrices = [
                p for name, p in training.part.parameters.items() if ".mlp." in name and name.endswith("weight")
            ]
            handle = matrices[-1].register_hook(lambda gradient: gradient * torch.inf)
            reports.append(train_step(training, step, step * steps.batch, samples))
            handle.remove()
        else:
            reports.append(train_step(training, step, step * steps.batch, samples))
    weights = [line.master.detach().clone() for shards in training.gradients.shards for line in shards.lines]
    training.close()
    return reports, weights


LAYOUTS = {
    "dp2": Layout(dp=2),
    "dp2, ZeRO 1": Layout(dp=2, zero=1),
    "dp2, ZeRO 2": Layout(dp=2, zero=2, microbatches=2),
    "dp2, ZeRO 3": Layout(dp=2, zero=3),
    "pp2": Layout(pp=2, microbatches=2),
    "tp2": Layout(tp=2),
}


@pytest.mark.parametrize("layout", first(LAYOUTS.values(), 2), ids=LAYOUTS)
def test_losses_are_nearly_those_of_float32(ranks, layout):
    exact = ranks(1).run(trained, Layout(), Steps(batch=4, warmup=0))[0][0]
    for found, _ in ranks(2).run(trained, layout, Steps(batch=4, warmup=0, dtype="float16")):
        for one, other in zip(exact, found, strict=True):
            assert other.loss == pytest.approx(one.loss, rel=2e-3)
            assert other.norm == pytest.approx(one.norm, rel=2e-2)
            assert (other.scale, other.skipped) == (65536, False)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_an_overflow_on_one_rank_is_skipped_on_all(ranks, layout):
    steps = Steps(batch=4, warmup=0, dtype="float16")
    for reports, _ in ranks(2).run(trained, layout, steps, 4, 65536.0, (1,)):
        assert [report.skipped for report in reports] == [False, True, False, False]
        assert [report.scale for report in reports] == [65536, 65536, 32768, 32768]
        assert reports[1].norm in (float("inf"),) or reports[1].norm != reports[1].norm


def test_a_skipped_step_changes_nothing(ranks):
    steps = Steps(batch=4, warmup=0, dtype="float16", lr=0.0)
    before = ranks(2).run(trained, Layout(dp=2, zero=1), steps, 0)
    after = ranks(2).run(trained, Layout(dp=2, zero=1), Steps(batch=4, warmup=0, dtype="float16"), 1, 65536.0, (0,))
    for (_, one), (_, other) in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_scale_is_divided_out_exactly(ranks):
    """Scales are powers of two: as long as nothing overflows or vanishes, they change no bit."""
    steps = Steps(batch=4, warmup=0, dtype="float16", clip=0)
    (small, one), (large, other) = (ranks(1).run(trained, Layout(), steps, 1, scale)[0] for scale in (2.0**12, 2.0**13))
    assert small[0].loss == large[0].loss
    differ = sum(int((a != b).sum()) for a, b in zip(one, other, strict=True))
    assert differ <= 0.02 * sum(weight.numel() for weight in one)  # subnormal gradients, which a larger scale keeps


def at_the_floor(world):
    with pytest.raises(NotFinite) as caught:
        trained(world, Layout(dp=2), Steps(batch=4, dtype="float16"), 1, 1.0, (0,))
    return str(caught.value)


def test_at_the_floor_the_run_stops_and_names_the_layer(ranks):
    for message in ranks(2).run(at_the_floor):
        assert "every loss is finite, but not the gradient of" in message
        assert "with a loss scale of 1" in message


def run(folder, *arguments):
    sizes = ("--positions", "16", "--hidden", "32", "--layers", "2", "--heads", "2", "--batch", "4", "--sample", "0")
    options = ("--dtype", "float16", "--loss-scale", "16777216", "--runs", str(folder), "--warmup", "0")
    command = [sys.executable, "-m", "minitrain.train", *sizes, *options, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def lines(folder, name):
    text = (folder / name / "metrics.jsonl").read_text()
    return [line for line in map(json.loads, text.splitlines()) if "step" in line]


@pytest.mark.slow("three programs that train")
def test_a_run_that_overflows_recovers_and_resumes(tmp_path):
    options = ("--steps", "14", "--ranks", "2", "--dp", "2", "--save-every", "8", "--keep", "9")
    said = run(tmp_path, "--name", "whole", *options)
    assert "a gradient overflowed float16: this step is left out, and the loss scale" in said
    whole = lines(tmp_path, "whole")
    skipped = [line["skipped"] for line in whole]
    assert skipped[0] and not skipped[-1]
    assert all(("norm" in line) != line["skipped"] for line in whole)
    assert [line["scale"] for line in whole] == [2.0 ** (24 - sum(skipped[:number])) for number in range(14)]

    # Back to step 8: the scale and the optimizer's own number of steps are those of then.
    (last,) = (tmp_path / "whole" / "checkpoints").glob("step-*14")
    shutil.rmtree(last)
    run(tmp_path, "--name", "whole", *options, "--resume")
    again = lines(tmp_path, "whole")
    assert [(line["step"], line["loss"], line["scale"]) for line in again] == [
        (line["step"], line["loss"], line["scale"]) for line in whole
    ]
