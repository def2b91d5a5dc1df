"""The costs of pipelines by hand."""

from __future__ import annotations

from fractions import Fraction

from minitrain.costs import pipeline as costs
from minitrain.pipeline_parallel.schedules import SCHEDULES


def test_four_ranks_by_hand():
    """p = 4, m = 8, F = 1, I = 1, W = 1: a rank works 24."""
    assert costs.ideal_time(8, 1, 1, 1) == 24
    assert costs.bubble(4, 1, 1, 1) == 9
    assert costs.bubble_over_ideal(4, 8) == Fraction(9, 24)
    assert costs.bubble_over_total(4, 8) == Fraction(9, 33) == Fraction(3, 11)
    assert costs.bubble(4, 1, 1, 1, chunks=2) == Fraction(9, 2)
    assert costs.bubble_over_total(4, 8, chunks=2) == Fraction(9, 57)
    assert costs.zero_bubble_h1(4, 8, 1, 1, 1) == 3
    assert costs.zero_bubble_h2(4, 8, 1, 1, 1) == 0
    assert isinstance(costs.bubble(4, 1.0, 1.0, 1.0, 2), float)


def test_too_few_micro_batches_leave_gaps_that_no_w_fills():
    # Appendix H: (m+p−1)(F+I) + W in all for m ≤ p, here m = 2 on p = 4 ranks: 5 · 2 + 1, less the work of 6.
    assert costs.zero_bubble_h1(4, 2, 1, 1, 1) == costs.zero_bubble_h2(4, 2, 1, 1, 1) == 5 * 2 + 1 - 6
    assert costs.zero_bubble_h2(4, 6, 1, 1, 1) == 1 and costs.zero_bubble_h2(4, 7, 1, 1, 1) == 0
    assert [costs.zero_bubble_v(4, m, 1, 1, 1) for m in (1, 4, 5, 7, 99)] == [6, 3, 2, 0, 0]
    assert costs.zero_bubble_v(4, 7, 2, 3, 1) == 3 * (3 - 1)


def test_in_flight_by_hand():
    assert costs.gpipe_in_flight(8) == 8
    assert [costs.one_f_one_b_in_flight(4, 8, rank) for rank in range(4)] == [4, 3, 2, 1]
    assert [costs.one_f_one_b_in_flight(4, 2, rank) for rank in range(4)] == [2, 2, 2, 1]


def test_v_chunks_cross_between_ranks_v_times_as_often():
    together = {v: sum(costs.sent([10] * (4 * v - 1), 4, 8, rank).bytes for rank in range(4)) for v in (1, 2, 3)}
    assert together == {v: 2 * 8 * 10 * (4 * v - 1) for v in together}
    assert [costs.messages(4, 8, v) for v in (1, 2, 3)] == [2 * 8 * 3, 2 * 8 * 7, 2 * 8 * 11]
    assert set(SCHEDULES) > {"1f1b", "interleaved"}
