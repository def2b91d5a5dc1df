"""The simulator against the papers' tables and formulas, and against the longest path through the graph."""

from __future__ import annotations

from fractions import Fraction
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.costs import pipeline as costs
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import (
    Action,
    gpipe,
    interleaved,
    naive,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_h2,
    zero_bubble_v,
)
from tests.pipeline_parallel.test_schedules import M, P, graph, make, sizes

patient = settings(max_examples=40)
whole = st.integers(1, 30)
ratios = st.tuples(whole, whole, whole).map(lambda times: [Fraction(time, 7) for time in times])
# The zero-bubble formulas hold where W is the shortest.
shortest_last = ratios.map(lambda times: [*times[:2], min(times)])

PRINTED = [
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),  # 1.5B
    (8, 32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),  # 6.2B
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672),  # 14.6B
    (32, 96, 10.419, 10.207, 7.715, 0.408, 0.2646, 0.1421, 0.0641),  # 28.3B; with m = 128 and 256 it takes seconds
]


@pytest.mark.parametrize("p, m, forward, backward, weight, message, one_f_one_b_rate, h1_rate, h2_rate", PRINTED)
def test_the_bubble_rates_that_the_zero_bubble_paper_prints(
    p, m, forward, backward, weight, message, one_f_one_b_rate, h1_rate, h2_rate
):
    printed = {one_f_one_b: one_f_one_b_rate, zero_bubble_h1: h1_rate, zero_bubble_h2: h2_rate}
    for schedule, rate in printed.items():
        timetable = simulate(schedule(p, m), forward, backward, weight, message)
        assert round(timetable.bubble_over_total, 4) == rate


@patient
@given(sizes(), st.data(), st.integers(0, 5))
def test_every_action_starts_at_the_end_of_the_longest_path_to_it(size, data, message):
    schedule = make(size)
    costs_of = {kind: data.draw(st.lists(whole, min_size=(n := schedule.stages), max_size=n)) for kind in "FIW"}
    timetable = simulate(schedule, costs_of["F"], costs_of["I"], costs_of["W"], message)
    costs_of["B"] = [sum(both) for both in zip(costs_of["I"], costs_of["W"], strict=True)]
    before = graph(schedule)
    ends: dict[Action, int] = {}
    for action in TopologicalSorter(before).static_order():
        rank = schedule.rank_of(action.stage)
        arrivals = [ends[other] + message * (schedule.rank_of(other.stage) != rank) for other in before[action]]
        ends[action] = max(arrivals, default=0) + costs_of[action.kind][action.stage]
    for rank, row in enumerate(timetable.slots):
        assert tuple(slot.action for slot in row) == schedule.actions[rank]
        assert [slot.end for slot in row] == [ends[slot.action] for slot in row]
        assert all(slot.end - slot.start == costs_of[slot.action.kind][slot.action.stage] for slot in row)
        assert timetable.spans[rank] == row[-1].end - row[0].start <= timetable.longest_span
        assert timetable.idle[rank] == timetable.longest_span - sum(slot.end - slot.start for slot in row)
    assert timetable.makespan == max(ends.values())


@patient
@given(P, M, st.integers(1, 3), ratios)
def test_bubbles_without_w(p, groups, v, times):
    f, i, w = times
    table = simulate(naive(p, groups), f, i, w)
    assert (table.ideal, table.makespan) == (costs.ideal_time(groups, f, i, w), p * groups * sum(times))
    m = p * min(groups, 4)
    cases = [(gpipe(p, groups), groups, 1), (one_f_one_b(p, groups), groups, 1), (interleaved(p, m, v), m, v)]
    for schedule, count, chunks in cases:
        table = simulate(schedule, f / chunks, i / chunks, w / chunks)
        assert (table.ideal, table.bubble) == (costs.ideal_time(count, f, i, w), costs.bubble(p, f, i, w, chunks))
        assert table.bubble_over_ideal == costs.bubble_over_ideal(p, count, chunks)
        assert table.bubble_over_total == costs.bubble_over_total(p, count, chunks)
        assert table.longest_span == table.makespan


@patient
@given(P, M, shortest_last)
def test_zero_bubbles(p, m, times):
    f, i, w = times
    h1, h2 = simulate(zero_bubble_h1(p, m), f, i, w), simulate(zero_bubble_h2(p, m), f, i, w)
    assert h1.bubble == costs.zero_bubble_h1(p, m, f, i, w)
    assert h2.bubble == costs.zero_bubble_h2(p, m, f, i, w)
    if m >= p:
        assert h1.bubble == (p - 1) * (f + i - w)
    if m >= 2 * p - 1:
        assert h2.bubble == (p - 1) * (f + i - 2 * w)
        assert simulate(zero_bubble_h2(p, m), f, f, f).idle == [0] * p
        # Where all ranks wait for each other at the end of a step, H2 gains only what W is shorter than I.
        assert h2.makespan == m * (f + i + w) + (p - 1) * max(f, f + i - 2 * w)
        assert h1.makespan == m * (f + i + w) + (p - 1) * (f + i - w)
    if m <= p:  # appendix H
        assert h1.longest_span == h2.longest_span == (m + p - 1) * (f + i) + w


@patient
@given(P, M, shortest_last)
def test_v_has_no_bubble_where_all_are_equal_and_less_than_h1_where_they_are_not(p, m, times):
    equal = simulate(zero_bubble_v(p, m), 1, 1, 1)
    assert equal.idle == [0] * p if m >= 2 * p - 1 else equal.bubble > 0
    f, i, w = times
    halves = simulate(zero_bubble_v(p, m), f / 2, i / 2, w / 2)
    if f <= i:
        assert halves.bubble == costs.zero_bubble_v(p, m, f, i, w)
    assert halves.bubble <= simulate(one_f_one_b(p, m), f, i, w).bubble


@patient
@given(P, st.integers(0, 5), st.integers(0, 9))
def test_memory_of_h1_and_h2_is_that_of_the_paper(p, more, kept):
    """§2.3, with M_B = 10 and M_W = `kept`: (p−i+1)M_B + (i−1)M_W and (2p−2i+1)M_B + (2i−2)M_W on worker i."""
    m = 2 * p - 1 + more
    h1, h2 = (simulate(schedule(p, m), 1, 1, 1) for schedule in (zero_bubble_h1, zero_bubble_h2))
    for i in range(1, p + 1):
        assert h1.peak_in_flight(i - 1, 10, kept) == (p - i + 1) * 10 + (i - 1) * kept
        assert h2.peak_in_flight(i - 1, 10, kept) == (2 * p - 2 * i + 1) * 10 + (2 * i - 2) * kept


def test_in_flight_by_hand():
    # F0 at 2 to 3, B0 at 3 to 5, F1 at 5 to 6, B1 at 6 to 8: from the start of F to the end of B.
    timetable = simulate(one_f_one_b(3, 2), 1, 1, 1)
    assert timetable.in_flight(2) == [(2, 1), (5, 0), (5, 1), (8, 0)]
    split = simulate(zero_bubble_h1(2, 2), 1, 1, 1)
    assert split.in_flight(1, 10, 4) == [(1, 10), (3, 4), (3, 14), (5, 8), (6, 4), (7, 0)]
    assert split.in_flight(1, rest=0) == [(1, 1), (3, 0), (3, 1), (5, 0), (6, 0), (7, 0)]
