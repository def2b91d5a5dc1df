"""The calculator's formulas for any layout, compared with the dry run, which is exact."""

from __future__ import annotations

import random

import pytest

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import layout
from minitrain.costs.roofline import MACHINES
from minitrain.planning import plan
from minitrain.planning.full import time_model
from minitrain.planning.full.plan_time import shape_of
from minitrain.planning.plan import Coordinate

pytestmark = pytest.mark.usefixtures("without_shapes")  # the dry run calls small functions very often


def cases(number, experts):
    """Random layouts that fit their model."""
    draw = random.Random(7 + experts)
    found = []
    while len(found) < number:
        model = Model(draw.choice(["gpt2", "xl", "175b", "1t"]), experts=experts)
        steps = Steps(batch=0, dtype=draw.choice(["bfloat16", "float32"]))
        cut = Layout(
            dp=draw.choice([1, 2, 4, 16]),
            pp=draw.choice([1, 2, 4, 8]),
            cp=1 if experts else draw.choice([1, 1, 2, 4]),
            tp=draw.choice([1, 2, 4, 8]),
            ep=draw.choice([1, 2, 4]) if experts else 1,
            zero=draw.choice([0, 1, 2, 3]),
            microbatches=draw.choice([1, 2, 4, 8, 32]),
            sequence_parallel=draw.random() < 0.5,
            recompute=draw.choice(["none", "selective", "full"]),
        )
        sequences = draw.choice([1, 2])
        steps = Steps(batch=cut.dp * cut.microbatches * sequences, dtype=steps.dtype)
        try:
            check(model, cut, steps)
        except ValueError:
            continue
        found.append((model, cut, steps, sequences))
    return found


def ours(cut, steps, sequences):
    item = plan.ITEM[steps.dtype]
    axes = cut.dp, cut.pp, cut.cp, cut.tp, cut.ep, cut.zero
    rest = cut.sequence_parallel, cut.recompute, cut.microbatches, sequences
    return layout.Cut(*axes, *rest), layout.Sizes(item, item, 12 if item == 2 else 8)


def test_a_rank_holds_what_the_dry_run_says():
    """To the byte for activations; states but for padding and step counters, which are far below a millionth."""
    for model, cut, steps, sequences in cases(60, 0):
        mine, sizes = ours(cut, steps, sequences)
        for stage in range(cut.pp):
            found = layout.held(shape_of(model), mine, stage, sizes)
            exact = plan.held(model, cut, steps, Coordinate(stage))
            assert found.keys() == exact.keys() and found["activations"] == exact["activations"]
            assert found == pytest.approx(exact, rel=1e-4), (cut, stage)


def test_a_rank_with_experts_holds_nearly_that():
    """Rows of experts that have room for more than they get are left out."""
    for model, cut, steps, sequences in cases(30, 8):
        mine, sizes = ours(cut, steps, sequences)
        for stage in range(cut.pp):
            found = layout.held(shape_of(model), mine, stage, sizes)
            exact = plan.held(model, cut, steps, Coordinate(stage))
            states = [name for name in exact if name != "activations"]
            assert [found[name] for name in states] == pytest.approx([exact[name] for name in states], rel=1e-3), cut
            assert found["activations"] == pytest.approx(exact["activations"], rel=0.25), cut


def test_a_step_takes_nearly_what_the_dry_run_says():
    """Computing is exact; a few messages of embedding, head and norms are left out, which small models wait for."""
    for model, cut, steps, sequences in cases(60, 0):
        mine, sizes = ours(cut, steps, sequences)
        exact = time_model.step_time(model, cut, steps, time_model.Cluster(MACHINES["H100"]))
        found = layout.bar(shape_of(model), mine, sizes, MACHINES["H100"])
        assert (found.compute, found.again) == pytest.approx((exact.compute, exact.again), rel=0.01), cut
        least = 0.95 if model.preset in ("175b", "1t") else 0.7
        assert least * exact.step <= found.step <= 1.05 * exact.step, (model.preset, cut)
