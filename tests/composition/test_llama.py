"""Llamas and Qwens in every layout: one device's losses, norms, gradients and weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minitrain.composition.settings import Layout, Model
from tests.composition.test_step import SCHEDULES, check

LLAMA = Model(
    layers=2,
    hidden=16,
    heads=4,
    kv_heads=2,
    positions=8,
    vocabulary=257,
    norm="rms",
    mlp="swiglu",
    mlp_hidden=24,
    biases="none",
    positions_kind="rope",
    rope_base=1e6,
    tied=False,
)
# Of four pairs Llama 3.1's rule then mixes one, and slows one down.
QWEN = replace(LLAMA, head_size=8, qk_norm=True, biases="qkv", rope_factor=8.0, norm_eps=1e-6, tied=True)
MODELS = {"Llama": LLAMA, "Qwen": QWEN, "one key head": replace(QWEN, kv_heads=1, dropout=0.1, biases="all")}

TWO = [
    Layout(dp=2, microbatches=2, recompute="full"),
    Layout(dp=2, zero=2),
    Layout(dp=2, zero=3),
    Layout(tp=2, recompute="selective"),
    Layout(tp=2, sequence_parallel=True, microbatches=2),
]
CONTEXT = [Layout(cp=2, cp_mode="ring"), Layout(cp=2), Layout(cp=2, cp_mode="ulysses"), Layout(cp=2, cp_mode="gather")]
FOUR = [
    Layout(tp=4),
    Layout(tp=4, sequence_parallel=True),
    Layout(dp=2, tp=2, zero=1),
    Layout(dp=2, tp=2, zero=3),
    Layout(pp=2, tp=2, sequence_parallel=True, microbatches=2),
    Layout(cp=2, tp=2),
]


@pytest.mark.parametrize("name", MODELS)
def test_two_ranks(ranks, name):
    check(ranks, TWO + CONTEXT, MODELS[name])


@pytest.mark.parametrize("name", MODELS)
def test_four_ranks(ranks, name):
    check(ranks, FOUR, MODELS[name])


def test_schedules(ranks):
    """Zero bubbles compute the gradients of weights apart from the rest."""
    model = replace(QWEN, layers=4)
    check(ranks, [Layout(pp=2, microbatches=4, schedule=name) for name in SCHEDULES], model)
