"""Formulas of resilience, against published figures and against enumeration."""

from __future__ import annotations

from itertools import combinations

import pytest

from minitrain.costs import resilience as costs


def test_a_thousand_gpus_fail_every_day():
    assert costs.any_fails(0.01, 128) == pytest.approx(0.7237, abs=5e-5)
    assert costs.any_fails(0.0027, 1000) == pytest.approx(0.93, abs=5e-3)
    assert costs.any_fails(0.3, 1) == pytest.approx(0.3)
    assert costs.any_fails(0.5, 2) == 0.75


def test_llama_3():
    # Grattafiori et al. 2024, §3.3.4: 419 unexpected interruptions in 54 days on 16,384 GPUs; one in three hours.
    assert costs.mean_hours(54 * 24, 419) == pytest.approx(3.09, abs=0.01)
    # As many as if each GPU failed once in 5.8 years.
    assert 1 / costs.chance_per_device(419, 16384, 54) / 365 == pytest.approx(5.8, abs=0.05)


def test_exit_codes_that_everyone_knows():
    assert (costs.exit_code(9), costs.exit_code(11), costs.exit_code(15)) == (137, 139, 143)


def test_a_heartbeat_by_hand():
    # Looks at 0, 4, 8, …; a rank's last step at 5, seen at 8; a limit of 10 has passed at 20: 15 later.
    assert costs.seen_after(since_look=1, limit=10, interval=4) == 15


@pytest.mark.parametrize("nodes", range(4, 12))
def test_shifted_pairs(nodes):
    # As a graph: each node's neighbours are those it is paired with.
    edges = [(a, a + 1) for a in range(nodes - 1)] + ([(nodes - 1, 0)] if nodes % 2 == 0 else [])
    exact = 0
    for most in range(3):
        for faulty in map(set, combinations(range(nodes), most)):
            failed = [sum(node in edge and bool(faulty & set(edge)) for edge in edges) for node in range(nodes)]
            exact += {node for node in range(nodes) if failed[node] == 2} == faulty
    assert costs.found_by_shifted_pairs(nodes) == exact


def test_sets_of_faulty_nodes():
    assert [costs.fault_sets(nodes, 2) for nodes in (4, 8)] == [1 + 4 + 6, 1 + 8 + 28]
    for nodes in range(1, 8):
        left = [nodes - len(each) for f in range(nodes + 1) for each in combinations(range(nodes), f)]
        assert costs.undecidable(nodes) == sum(healthy < 2 for healthy in left)


def test_bytes_of_pairs():
    assert [costs.pair_bytes(nodes, 10) for nodes in (1, 2, 3, 4)] == [0, 20, 40, 40]


def test_steps_by_hand():
    # Saved after 3, 6, 9. A crash in step 4 loses step 3; one in step 8 loses 6 and 7; one in step 6 nothing.
    assert [costs.computed_again(crash, 3) for crash in (4, 8, 6)] == [1, 2, 0]
    assert costs.steps_with_crashes(11, 3, [4, 8]) == 14


@pytest.mark.parametrize("micro_batches", [1, 7, 12, 36, 97])
def test_data_parallel_size(micro_batches):
    for left in range(1, 40):
        divisors = [d for d in range(1, left + 1) if micro_batches % d == 0]
        assert costs.data_parallel_size(left, micro_batches) == divisors[-1]


def test_ordered_sums():
    assert [costs.ordered_sum_sent(10, rank, 4) for rank in range(4)] == [10, 20, 20, 10]
    assert costs.ordered_sum_sent_in_all(10, 4) == 60 and costs.ordered_sum_sent(10, 0, 1) == 0
    # One piece goes over three links and back; with endless pieces, all of it leaves once in each direction.
    assert costs.ordered_sum_seconds(8, 4, 1, 2.0) == 2 * 3 * 8 / 2
    assert costs.ordered_sum_seconds(8, 4, 10**9, 2.0) == pytest.approx(2 * 8 / 2)
    assert costs.ordered_sum_seconds(8, 1, 4, 2.0) == 0


def test_named_by_clock():
    # Clocks 0, 1, 2 ms fast, the others fail 1.5 ms later: the ranks with 0 and 1 still come first.
    assert costs.named_by_clock(3, 1.5) == 2 and costs.named_by_clock(3, 7.5) == 3
