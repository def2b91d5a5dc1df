"""Llamas and Qwens in every layout: one device's losses, norms, gradients and weights."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import get_args

import pytest

from minitrain.composition.layout_settings import ContextMode
from minitrain.composition.settings import Layout, Model
from tests.composition.test_step import SCHEDULES, check
from tests.drawn import first, part
from tests.models import kinds

LLAMA = Model(
    layers=2, hidden=16, heads=4, kv_heads=2, positions=8, vocabulary=257, mlp_hidden=24, **kinds.LLAMA
)  # fmt: skip
QWEN = replace(LLAMA, **kinds.QWEN)
MODELS = {"Llama": LLAMA, "Qwen": QWEN, "one key head": replace(QWEN, kv_heads=1, dropout=0.1, biases="all")}
TWO = [
    Layout(dp=2, microbatches=2, recompute="full"),
    Layout(dp=2, zero=2),
    Layout(dp=2, zero=3),
    Layout(tp=2, recompute="selective"),
    Layout(tp=2, sequence_parallel=True, microbatches=2),
    *(Layout(cp=2, cp_mode=mode) for mode in get_args(ContextMode)),
]
FOUR = [
    Layout(tp=4),
    Layout(tp=4, sequence_parallel=True),
    Layout(dp=2, tp=2, zero=1),
    Layout(dp=2, tp=2, zero=3),
    Layout(pp=2, tp=2, sequence_parallel=True, microbatches=2),
    Layout(cp=2, tp=2),
]


LAYOUTS = {"two ranks": TWO, "four ranks": FOUR}


@pytest.mark.parametrize(("name", "size"), first(part([*product(MODELS, LAYOUTS)], 3, "Llamas")))
def test_layouts(ranks, name, size):
    check(ranks, LAYOUTS[size], MODELS[name])


@pytest.mark.slow("seven schedules")
def test_schedules(ranks):
    """Zero bubbles compute the gradients of weights apart from the rest."""
    check(ranks, SCHEDULES, replace(QWEN, layers=4))
