"""Rotary positions in every layout: one device's losses and weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model, Steps, check
from tests.composition.test_step import STEPS
from tests.composition.test_step import check as check_layouts

MODEL = Model(
    layers=4, hidden=16, heads=4, positions=8, vocabulary=257, dropout=0.1, positions_kind="rope", rope_base=50.0
)
TWO = [
    Layout(dp=2, microbatches=2, recompute="full"),
    Layout(dp=2, zero=3, microbatches=2),
    Layout(tp=2, recompute="selective"),
    Layout(tp=2, sequence_parallel=True, microbatches=2),
    Layout(pp=2, microbatches=2),
]


def test_losses_gradients_and_weights(ranks):
    check_layouts(ranks, TWO, MODEL)


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
