"""The bar of time: hidden and exposed communication, and the bounds that they keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import communication, composition, composition_work
from minitrain.costs import roofline as roofline_costs
from minitrain.costs import time_bar as costs
from minitrain.costs.fabric import Fabric
from minitrain.costs.roofline import MACHINES, SEVEN_BILLION


@given(st.floats(1, 9), st.floats(0, 1), st.floats(0, 9), st.floats(0, 9))
def test_a_bar_is_between_the_bounds(compute, share, hideable, waited_for):
    hidden, exposed = costs.overlap((hideable, share * compute), (waited_for, 0))
    lower, upper = roofline_costs.bounds(compute, hideable + waited_for)
    assert lower * (1 - 1e-9) <= costs.Bar(compute, hidden, exposed).step <= upper * (1 + 1e-9)
    assert hidden + exposed == pytest.approx(hideable + waited_for)
    assert hidden <= share * compute


def test_seven_billion_parameters_on_512_h100():
    shape, machine = SEVEN_BILLION, MACHINES["H100"]
    assert composition.model_parameters(shape) == pytest.approx(6.66e9, rel=1e-3)
    # A GPU in each node, with its own card at its full rate.
    bar = costs.data_parallel_bar(shape, machine, 512, 2**22, Fabric(1, reached_out=1.0, hop_out=0.0))
    flops = composition_work.step_flops(2**22 // 2048, shape) / 512
    assert bar.compute == pytest.approx(flops / (0.5 * machine.flops))
    sent = communication.ring_all_reduce_time(2 * composition.model_parameters(shape), 512, 0, 1 / machine.network)
    assert bar.hidden + bar.exposed == pytest.approx(sent)
    assert bar.hidden == pytest.approx(2 / 3 * bar.compute)  # 8192 tokens are too few to hide the rest
    assert bar.mfu(flops, machine.flops) == pytest.approx(0.5 * bar.compute / bar.step)
    assert bar.days(2e12 / 2**22) == pytest.approx(4.25, abs=0.01)
    # With eight GPUs in each node, a ring has eight cards; four fifths are reached, and it waits 28 times for its hops.
    shared = costs.data_parallel_bar(shape, machine, 512, 2**22)
    waits = 14 * 2 * (448 * 3e-6 + 63 * 10e-6)
    assert shared.hidden + shared.exposed == pytest.approx(sent / 8 / 0.8 + waits)
    assert shared.exposed == 0
