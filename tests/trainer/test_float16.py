"""Training in float16: overflows that all ranks skip, and losses of float32."""

from __future__ import annotations

from dataclasses import replace

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
    steps = Steps(batch=4, warmup=0, optimizer="sgd", lr=0.1)  # whose step grows with the gradient, unlike Adam's
    exact = ranks(1).run(trained, Layout(), steps)[0][0]
    for found, _ in ranks(2).run(trained, layout, replace(steps, dtype="float16")):
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


def at_the_floor(world):
    with pytest.raises(NotFinite) as caught:
        trained(world, Layout(dp=2), Steps(batch=4, dtype="float16"), 1, 1.0, (0,))
    return str(caught.value)


def test_at_the_floor_the_run_stops_and_names_the_layer(ranks):
    for message in ranks(2).run(at_the_floor):
        assert "every loss is finite, but not the gradient of" in message
        assert "with a loss scale of 1" in message
