"""The comparisons run, and both sides train the same model; which is faster is no matter here."""

from __future__ import annotations

import statistics

import pytest

from minitrain.benchmarks import composition as benchmark
from minitrain.benchmarks.torch_step import TorchStep
from minitrain.comm.control import gather_objects
from minitrain.composition.settings import Model, Steps
from minitrain.data.text import Samples, Text
from minitrain.train import build, train_step

SMALL = Model(layers=4, hidden=16, heads=4, positions=8)


def measure(world):
    return benchmark.measure(world, SMALL, batch=4, repeats=1)


@pytest.mark.slow("trains in seven layouts, ours and torch's")
def test_every_layout_that_fits_has_two_rows(ranks):
    rows, *others = ranks(2).run(measure)
    assert others == [rows]
    names = [row.what.split("2 ranks, ")[1].rsplit(", ", 1)[0] for row in rows]
    assert names[::2] == ["dp2", "dp2, ZeRO 1", "dp2, ZeRO 2", "dp2, ZeRO 3", "tp2", "tp2, sequence parallel", "pp2"]


def steps_of_both(world, name):
    """Loss and norm of three steps on the same samples: ours, and torch's."""
    steps, samples = Steps(batch=8, warmup=0), Samples(Text.load().training, SMALL.positions)
    settings = benchmark._settings(world.size, SMALL, steps)[name]
    theirs, training = TorchStep(world, settings, samples), build(settings, world.device)
    found = []
    for _ in range(3):
        loss, norm = theirs()
        losses = [each for each in gather_objects(loss) if each is not None]
        report = train_step(training, 0, 0, samples)
        found.append(((report.loss, report.norm), (statistics.mean(losses), norm)))
    return found


@pytest.mark.slow("trains in ten layouts, ours and torch's")
@pytest.mark.parametrize("name", benchmark._settings(4, SMALL, Steps(batch=8)))
def test_both_sides_train_the_same_model(ranks, name):
    # Norms of the second and third step show that parameters have become the same ones.
    for ours, theirs in (each for found in ranks(4).run(steps_of_both, name) for each in found):
        assert ours == pytest.approx(theirs, rel=1e-4)
