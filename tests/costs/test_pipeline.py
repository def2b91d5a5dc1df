"""The costs of pipelines by hand, against each other, and messages counted one by one."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.costs import pipeline as costs
from minitrain.pipeline_parallel.full import versions
from minitrain.pipeline_parallel.schedules import SCHEDULES, WITHOUT_FLUSH, interleaved, two_buffered


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


sizes = st.integers(1, 8), st.integers(1, 20), st.integers(1, 4)


@given(*sizes, st.integers(1, 9), st.integers(1, 9))
def test_over_ideal_and_over_total_say_the_same(p, m, v, forward, backward):
    bubble, ideal = costs.bubble(p, forward, backward, chunks=v), costs.ideal_time(m, forward, backward)
    assert costs.bubble_over_ideal(p, m, v) == Fraction(bubble) / ideal
    assert costs.bubble_over_total(p, m, v) == Fraction(bubble) / (ideal + bubble)


@settings(max_examples=50)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.data())
def test_bytes_are_those_of_the_messages_that_a_schedule_needs(p, groups, v, data):
    schedule = interleaved(p, p * groups, v)
    boundaries = data.draw(st.lists(st.integers(0, 50), min_size=p * v - 1, max_size=p * v - 1))
    sent = [[0, 0] for _ in range(p)]
    for rank, row in enumerate(schedule.actions):
        for action in row:
            for need in schedule.needs(action):
                sender, size = schedule.rank_of(need.stage), boundaries[min(need.stage, action.stage) :][:1]
                if sender != rank and size != [0]:  # an empty tensor makes no message
                    sent[sender][0] += size[0]
                    sent[sender][1] += 1
    assert [costs.sent(boundaries, p, p * groups, rank) for rank in range(p)] == [tuple(each) for each in sent]


def test_v_chunks_cross_between_ranks_v_times_as_often():
    together = {v: sum(costs.sent([10] * (4 * v - 1), 4, 8, rank).bytes for rank in range(4)) for v in (1, 2, 3)}
    assert together == {v: 2 * 8 * 10 * (4 * v - 1) for v in together}
    first = {v: costs.sent([10] * (4 * v - 1), 4, 8, 1) for v in (1, 3)}
    assert first[3] == tuple(3 * count for count in first[1])  # a rank in the middle
    assert costs.sent([10], 1, 8, 0) == (0, 0) and costs.messages(1, 8) == 0
    assert [costs.messages(4, 8, v) for v in (1, 2, 3)] == [2 * 8 * 3, 2 * 8 * 7, 2 * 8 * 11]
    assert set(SCHEDULES) > {"1f1b", "interleaved"}


def test_without_a_flush_by_hand():
    """p = 4: a step of 8 takes 11 units with a flush, so that 24 take 33; without one they take 27."""
    assert costs.without_flush_speedup(4, 8, 24) == Fraction(33, 27)
    assert costs.without_flush_speedup(1, 8, 24) == 1
    # In the limit 1 + 3/8.
    assert abs(costs.without_flush_speedup(4, 8, 8 * 10**6) - Fraction(11, 8)) < Fraction(1, 10**6)
    assert [costs.pipedream_versions(4, rank) for rank in range(4)] == [4, 3, 2, 1]
    assert costs.vertical_sync_versions(4) == 4 and costs.two_buffered_versions() == 2
    assert [costs.pipedream_staleness(4, rank) for rank in range(4)] == [3, 2, 1, 0]
    assert costs.vertical_sync_staleness(4) == 3 and costs.two_buffered_staleness() == 1


@given(st.integers(1, 6), st.integers(0, 8))
def test_versions_and_staleness_are_those_of_the_schedules(p, more):
    total = max(1, 2 * (p - 1)) + more
    for rank in range(p):
        schedule = WITHOUT_FLUSH["pipedream"](p, total)
        assert versions.kept(schedule, rank) == costs.pipedream_versions(p, rank)
        assert versions.staleness(schedule, rank)[-1] == costs.pipedream_staleness(p, rank)
        schedule = WITHOUT_FLUSH["vertical-sync"](p, total)
        assert versions.kept(schedule, rank) == costs.vertical_sync_versions(p)
        assert versions.staleness(schedule, rank)[-1] == costs.vertical_sync_staleness(p)
        schedule = two_buffered(p, 3 * (p + more), p + more)
        assert versions.kept(schedule, rank) == costs.two_buffered_versions()
        assert versions.staleness(schedule, rank)[-1] == costs.two_buffered_staleness()
