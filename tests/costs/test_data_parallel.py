"""The costs of data parallelism against sums done by hand, and the flow shop against a simulation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import data_parallel as costs
from minitrain.costs.communication import ring_all_reduce
from minitrain.costs.data_parallel import Sizes

PARAMETERS = [Sizes(10, 4), Sizes(5, 4), Sizes(7, 2, "half"), Sizes(1, 4), Sizes(100, 4)]


def test_buckets_by_hand():
    # From the last: 100 elements fill a bucket of 64 bytes alone; then 1 + 5 + 10 elements are 64 bytes.
    assert costs.buckets(PARAMETERS, 64) == [Sizes(101, 4), Sizes(1 + 5 + 10 + 3, 4), Sizes(8, 2, "half")]
    assert costs.buckets(PARAMETERS, 0) == [
        Sizes(101, 4),
        Sizes(2, 4),
        Sizes(8, 2, "half"),
        Sizes(6, 4),
        Sizes(11, 4),
    ]
    assert costs.buckets([], 64) == []


def test_bytes_by_hand():
    gradients = 10 * 4 + 5 * 4 + 7 * 2 + 1 * 4 + 100 * 4
    assert costs.payload(PARAMETERS) == gradients + 4 * 4 + 2
    for rank in range(3):
        expected = [ring_all_reduce(elements, item, 3, rank) for elements, item in ((101, 4), (19, 4), (8, 2))]
        sent = costs.ring_traffic(PARAMETERS, 64, 3, rank)
        assert sent == (sum(each.bytes for each in expected), sum(each.messages for each in expected))


@given(st.lists(st.integers(1, 100), min_size=1), st.integers(1, 8))
def test_ranks_together_send_twice_n_minus_1_times_what_they_hold(elements, ranks):
    parameters = [Sizes(size, 4) for size in elements]
    together = sum(costs.ring_traffic(parameters, 64, ranks, rank).bytes for rank in range(ranks))
    assert together == 2 * (ranks - 1) * costs.payload(parameters)


times = st.integers(0, 20).map(float)


@given(times, st.lists(st.tuples(times, times), min_size=1, max_size=8))
def test_step_time_is_that_of_a_network_that_takes_one_bucket_at_a_time(forward, pairs):
    full = free = forward
    for backward, communication in pairs:
        full += backward
        free = max(full, free) + communication
    backward, communication = zip(*pairs, strict=True)
    step = costs.step_time(forward, backward, communication)
    assert step == max(full, free)
    assert communication[-1] <= step - full <= sum(communication)


def test_most_buckets():
    assert [costs.most_buckets(size, 100) for size in (0, 1, 100, 101)] == [0, 1, 1, 2]
