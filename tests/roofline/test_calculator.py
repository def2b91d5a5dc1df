"""The calculator's messages and times, next to formulas that other lessons measure, and by hand."""

from __future__ import annotations

import math

import pytest

from minitrain.costs import communication, tensor_parallel
from minitrain.costs import pipeline as costs
from minitrain.roofline.calculator import Device, Model, Run, held, mfu, parameters, seconds, sent

MODEL = Model(layers=8, hidden=64, vocabulary=100, seq=32)


@pytest.mark.parametrize(("stages", "micro_batches"), [(4, 8), (4, 2)])
def test_the_first_stage_holds_the_micro_batches_of_1f1b(stages, micro_batches):
    one = held(MODEL, Run(1, 1))["activations"] / MODEL.layers  # of a micro-batch and a layer
    found = held(MODEL, Run(micro_batches, micro_batches, pipeline=stages))["activations"]
    assert found == costs.one_f_one_b_in_flight(stages, micro_batches, 0) * (MODEL.layers / stages) * one


def test_what_stages_2_and_3_send_in_each_micro_batch():
    once = parameters(MODEL) * 2 * 3 / 4  # a gather or a reduce-scatter over four ranks, 2 bytes a number
    found = [sent(MODEL, Run(20, 5, data=4, zero=stage))["data"] for stage in range(4)]
    assert found == [2 * once, 2 * once, 6 * once, 15 * once]


@pytest.mark.parametrize("stages", [2, 4])
def test_what_the_chapters_send(stages):
    """In each form of parallelism alone, the bytes that its lesson counts message by message."""
    sizes = 2, MODEL.seq, MODEL.hidden
    gradients = communication.ring_all_reduce(parameters(MODEL), 2, 4, 0).bytes
    assert sent(MODEL, Run(8, data=4))["data"] == pytest.approx(gradients, rel=1e-3)  # chunks differ by an element
    layer = tensor_parallel.layer_traffic(*sizes, 4, 0, item=2).bytes  # one way
    assert sent(MODEL, Run(2, tensor=4))["tensor"] == 2 * layer * MODEL.layers
    message = tensor_parallel.payload(*sizes, item=2)  # of a micro-batch of two sequences
    busiest = max(costs.sent([message] * (stages - 1), stages, 4, rank).bytes for rank in range(stages))
    assert sent(MODEL, Run(8, 4, pipeline=stages))["pipeline"] == busiest


def test_what_hides_behind_backward():
    run, tokens = Run(8, data=4), 1e9
    products = seconds(MODEL, run, Device(tokens, math.inf))["products"]
    # A link over which gradients take as long as all products: two thirds of that are hidden.
    slow, fast = (Device(tokens, times * sent(MODEL, run)["data"] / products) for times in (1, 3))
    assert seconds(MODEL, run, slow)["data"] == pytest.approx(products / 3)
    assert seconds(MODEL, run, fast)["data"] == 0
    staged = seconds(MODEL, Run(8, 4, pipeline=4), Device(tokens, math.inf))
    assert staged["bubble"] == pytest.approx(float(costs.bubble_over_ideal(4, 4)) * staged["products"])


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (Run(8, data=4), 0.4),  # the part of the peak that products reach
        (Run(8, data=2, tensor=2, recompute=True), 0.3),  # of 8 operations 6 are the model's
        (Run(8, 4, data=2, pipeline=2), 0.32),  # a bubble of 1/4
    ],
)
def test_mfu_with_links_that_take_no_time(run, expected):
    assert mfu(MODEL, run, Device(1e9, math.inf, 0.4)) == pytest.approx(expected)
