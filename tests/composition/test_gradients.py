"""What is summed where ranks share heads, what is computed in 16 bits, and messages under a step's computations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from minitrain.composition import gradients
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.data.text import Samples, Text
from minitrain.lessons.composition import common as lesson
from minitrain.train import build, train_step
from tests.composition.test_step import check
from tests.drawn import first

MODEL = Model(layers=4, hidden=8, heads=4, positions=8, vocabulary=257)
STEPS = Steps(steps=5, batch=8, warmup=0, lr=1e-2, clip=0.0, dtype="float64", optimizer="sgd")


@pytest.mark.parametrize(
    "layout, kv_heads",
    [(Layout(tp=4), 2), (Layout(tp=4, sequence_parallel=True), 2), (Layout(tp=2, dp=2, zero=3), 1)],
    ids=str,
)
def test_key_heads_are_summed_among_the_ranks_that_share_them(ranks, layout, kv_heads):
    check(ranks, [layout], replace(MODEL, kv_heads=kv_heads), STEPS, 1e-12)


def low_precision(world, layout):
    """Two steps in bfloat16: what the optimizer steps is float32, and what is computed with is not."""
    steps = replace(STEPS, dtype="bfloat16", optimizer="adamw", lr=1e-3, clip=1.0)
    exact = lesson.one_device(Settings(MODEL, Layout(), replace(steps, dtype="float32")), 2)
    training = build(Settings(MODEL, layout, steps), world.device)
    found = lesson.beside(training, exact)
    training.close()
    dtypes = {line.master.dtype for line, _ in training.gradients.lines() if line.master is not None}
    return found, dtypes, {parameter.dtype for parameter in training.part.parameters.values()}


@pytest.mark.parametrize("layout", (Layout(pp=2, microbatches=2), Layout(tp=2), Layout(dp=2, zero=3)), ids=str)
def test_bfloat16(ranks, layout):
    for found, masters, parameters in ranks(2).run(low_precision, layout):
        assert masters == {torch.float32} and parameters == {torch.bfloat16}
        assert 1e-6 < found.gradients < 0.01 and found.reports < 0.05 and found.weights < 3 * 2e-3


def overlapped(world, layout):
    """Two steps with each layer in lines of its own: reports, lines, those under way before `synchronize()`."""
    found, samples = [], Samples(Text.load().training, MODEL.positions)
    for overlaps in (False, True):
        together, gradients.TOGETHER = gradients.TOGETHER, 1
        training = build(Settings(MODEL, layout, STEPS), world.device)
        gradients.TOGETHER = together
        (shard,) = training.gradients.shards
        under_way, synchronize = [], shard.synchronize

        def noted(shard=shard, under_way=under_way, synchronize=synchronize):
            under_way.append(len(getattr(shard, "_handles", ())))
            synchronize()

        shard.synchronize = noted
        if overlaps:
            training.gradients.overlap(training.part)
        reports = [train_step(training, step, step * STEPS.batch, samples) for step in range(2)]
        training.gradients.wait()
        weights = {name: parameter.detach().clone() for name, parameter in training.part.parameters.items()}
        found.append((reports, weights, under_way))
        lines = len(shard.lines)
        training.close()
    (plain, expected, before), (reports, weights, during) = found
    assert reports == plain
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert before == [0, 0]
    return lines, during


@pytest.mark.parametrize(
    "layout, later",
    first(
        [
            (Layout(dp=2, zero=1, microbatches=2), 0),
            (Layout(dp=2, pp=2, microbatches=2), 1),  # the tied table
            (Layout(dp=2, cp=2), 0),
            (Layout(dp=2, tp=2, sequence_parallel=True, zero=1), 0),
            (Layout(dp=2, pp=2, microbatches=2, zero=1, schedule="interleaved"), 1),
        ],
        2,
    ),
    ids=str,
)
def test_messages_under_a_steps_computations_change_no_bit(ranks, layout, later):
    for lines, during in ranks(layout.ranks).run(overlapped, layout):
        assert during == [lines - later] * 2


def test_new_parameters_of_stage_2_travel_during_forward(ranks):
    for _, during in ranks(2).run(overlapped, Layout(dp=2, zero=2)):
        assert during == [0, 0]  # stage 2 has other names for what is under way
