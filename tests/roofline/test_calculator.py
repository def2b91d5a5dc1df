"""The calculator: what the lesson's layouts do not reach, by hand."""

from __future__ import annotations

import math

import pytest

from minitrain.costs import pipeline as costs
from minitrain.roofline.calculator import Device, Model, Run, held, mfu, parameters, sent

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
