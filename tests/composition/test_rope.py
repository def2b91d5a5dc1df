"""Rotary positions in every layout: one device's losses and weights, the dry run's bytes, and longer sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import composition as costs
from minitrain.planning.full.plan_time import shape_of
from tests.composition.test_step import SCHEDULES, STEPS
from tests.composition.test_step import check as check_layouts
from tests.drawn import first

MODEL = Model(
    layers=4, hidden=16, heads=4, positions=8, vocabulary=257, dropout=0.1, positions_kind="rope", rope_base=50.0
)
TWO = [
    Layout(dp=2, microbatches=2, recompute="full"),
    Layout(dp=2, zero=3, microbatches=2),
    Layout(tp=2, recompute="selective"),
    Layout(tp=2, sequence_parallel=True, microbatches=2),
]
FOUR = [
    Layout(dp=2, tp=2, zero=1, sequence_parallel=True),
    Layout(pp=2, tp=2, microbatches=2, sequence_parallel=True, recompute="full"),
]


@pytest.mark.parametrize("layouts", first((TWO, FOUR)), ids=("2", "4"))
def test_losses_gradients_and_weights(ranks, layouts):
    check_layouts(ranks, layouts, MODEL)


@pytest.mark.slow("seven schedules")
def test_schedules(ranks):
    layouts = [Layout(pp=2, microbatches=2, schedule=name) for name in SCHEDULES]
    check_layouts(ranks, layouts, replace(MODEL, dropout=0.0))


def test_with_experts(ranks):
    check_layouts(ranks, [Layout(dp=2, ep=2, zero=1), Layout(tp=2)], replace(MODEL, experts=3))


def test_parameters():
    """GPT-2 without its 1,024 positions of 768, and nothing instead: 124,439,808 as published, less 786,432."""
    gpt2 = Model("gpt2", positions_kind="rope")
    assert costs.model_parameters(shape_of(gpt2)) == 124_439_808 - 1024 * 768
    longer = shape_of(replace(gpt2, positions=8192))
    assert costs.model_parameters(longer) == costs.model_parameters(shape_of(gpt2))


@pytest.mark.parametrize("changes, message", (
    ({"positions_kind": "alibi"}, "positions_kind='alibi' is unknown; use one of"),
    ({"rope_base": 0.5}, "rope_base=0.5 must be above 1 and finite"),
    ({"hidden": 12}, "hidden=12 over heads=4 makes heads of 3, .* use a multiple of 8"),
    ({"positions_kind": "learned"}, "rope_base=50 changes nothing with positions_kind='learned'"),
))  # fmt: skip
def test_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        model = replace(MODEL)
        for name, value in changes.items():
            object.__setattr__(model, name, value)  # the run's type checker refuses some
        check(model, Layout(), Steps(batch=8))
    check(MODEL, Layout(), STEPS)
