"""Both sides of a benchmark do the same work: the same training, the same result, the same bytes."""

from __future__ import annotations

import statistics

import pytest
import torch

from minitrain.benchmarks import (
    composition,
    mixture_of_experts,
    recomputation,
)
from minitrain.benchmarks.torch_step import TorchStep
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Model, Steps
from minitrain.data.text import Samples, Text
from minitrain.mixture_of_experts.full.compute import WAYS, lay_side_by_side
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full.checkpoint import checkpoint
from minitrain.train import build, train_step
from tests.benchmarks.test_rows import TINY
from tests.drawn import part

SMALL = Model(layers=8, hidden=16, heads=4, positions=8, tied=False)


def of_recomputation(world):
    models = []
    for each in (checkpoint, early_stop.checkpoint, *recomputation.TORCHS.values()):
        step = recomputation._step(world, TINY, 1, each)
        step()
        step()
        models.append(step.args[0])
    first, *others = ([p.grad for p in model.parameters()] for model in models)
    assert all(torch.equal(mine, its) for other in others for mine, its in zip(first, other, strict=True))


def of_experts(world):
    modules = mixture_of_experts._experts(3, 8)
    lay_side_by_side(list(modules))
    loop, *others = (mixture_of_experts._compute(world, modules, way, 20, 8, torch.float32)() for way in WAYS)
    for other in others:
        torch.testing.assert_close(other, loop)
    sides = [mixture_of_experts._step(world, 3, 16, 8, torch.float64, name) for name in ("spread", "everywhere")]
    for step in sides:
        step()
    ours, theirs = (dict(step.args[0].module.named_parameters()) for step in sides)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-9, atol=1e-12)


SIDES = (of_recomputation, of_experts)


@pytest.mark.parametrize("same_work", SIDES, ids=lambda side: side.__name__)
def test_both_sides_do_the_same(ranks, same_work):
    ranks(2).run(same_work)


def steps_of_both(world, name):
    """Loss and norm of three steps on the same samples: ours, and torch's."""
    steps, samples = Steps(batch=8, warmup=0), Samples(Text.load().training, SMALL.positions)
    settings = composition._settings(world.size, SMALL, steps)[name]
    theirs, training = TorchStep(world, settings, samples), build(settings, world.device)
    found = []
    for _ in range(3):
        loss, norm = theirs()
        losses = [each for each in gather_objects(loss) if each is not None]
        report = train_step(training, 0, 0, samples)
        found.append(((report.loss, report.norm), (statistics.mean(losses), norm)))
    return found


@pytest.mark.slow("trains in two of twelve layouts, ours and torch's")
@pytest.mark.parametrize("name", part([*composition._settings(4, SMALL, Steps(batch=8))], 2, "same work"))
def test_both_sides_train_the_same_model(ranks, name):
    # Norms of the second and third step show that parameters have become the same ones.
    for ours, theirs in (each for found in ranks(4).run(steps_of_both, name) for each in found):
        assert ours == pytest.approx(theirs, rel=1e-4)
