"""What is told of a spike, in one step of each layout: the layers' norms, and the samples with their losses."""

from __future__ import annotations

import math

import pytest

from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.data.text import Samples, as_tensor
from minitrain.data.tokenizer import Bytes
from minitrain.train import build, train_step
from minitrain.trainer.spikes import SpikeWatch
from minitrain.trainer.token_losses import TokenLosses
from tests.drawn import first

MODEL = Model(layers=2, hidden=32, heads=2, positions=16)
TEXT = as_tensor(b"The quick brown fox jumps over the lazy dog, and the dog is lazy still. " * 20)
LAYOUTS = [Layout(dp=2, zero=1), Layout(tp=2, sequence_parallel=True), Layout(pp=2, microbatches=2), Layout(cp=2)]
AT = 8  # the step's first sample


def told(world, layout, dtype):
    """A step that counts as a spike, as if its loss were no number: what is told of it, with its real loss."""
    training = build(Settings(MODEL, layout, Steps(batch=4, warmup=0, dtype=dtype)), world.device)
    tokens, samples, found = TokenLosses(training), Samples(TEXT, 16), []
    watch = SpikeWatch(training, tokens)
    tokens.begin()

    def inspect(report):
        assert watch.seen(report._replace(loss=math.nan))
        found.append(watch.about(report, 3, AT, samples, Bytes()))
        return False

    training.inspect = inspect
    train_step(training, 2, AT, samples)
    training.close()
    return found[0]


@pytest.mark.parametrize("layout", first(LAYOUTS, 2), ids=str)
def test_it_is_the_same_in_every_layout(ranks, layout):
    one = ranks(1).run(told, Layout(), "float64")[0]
    assert len(one["norm of each layer"]) == 4  # the embeddings, two blocks and the last norm
    assert math.hypot(*one["norm of each layer"].values()) == pytest.approx(one["norm"], rel=1e-9)
    assert {row["number"] for row in one["samples"]} == {8, 9, 10, 11}
    assert sum(row["loss"] for row in one["samples"]) / 4 == pytest.approx(one["loss"], rel=1e-9)
    for other in ranks(2).run(told, layout, "float64"):
        assert other["norm of each layer"] == pytest.approx(one["norm of each layer"], rel=1e-9)
        for mine, theirs in zip(other["samples"], one["samples"], strict=True):
            assert mine == {**theirs, "loss": pytest.approx(theirs["loss"], rel=1e-9)}


def test_norms_are_of_gradients_without_the_loss_scale(ranks):
    found = ranks(1).run(told, Layout(), "float16")[0]
    assert math.hypot(*found["norm of each layer"].values()) == pytest.approx(found["norm"], rel=1e-3)
