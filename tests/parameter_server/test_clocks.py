"""The rule of bounded staleness in every order of events, and in random ones with workers that leave."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs.staleness import most_stale
from minitrain.parameter_server.asynchronous import AsynchronousServer
from minitrain.parameter_server.full.clocks import Clocks, every_order


class SmallRule(Clocks):
    """The clocks with the small form's rule."""

    def may_begin(self, worker):
        return AsynchronousServer.may_begin(SimpleNamespace(clocks=self._finished, staleness=self.staleness), worker)


@pytest.mark.parametrize("rule", (Clocks, SmallRule))
@pytest.mark.parametrize(("workers", "bound"), [(1, 2), (2, 0), (2, 1), (2, 4), (3, 0), (3, 1), (3, 2), (4, 0)])
def test_the_worst_of_all_orders_is_the_bound(workers, bound, rule):
    worst = every_order(workers, bound, rule)
    assert worst.lead == (bound if workers > 1 else 0)
    assert worst.staleness == most_stale(workers, bound)


@given(st.integers(1, 5), st.integers(0, 3), st.randoms(use_true_random=False))
def test_random_orders_with_workers_that_leave(workers, bound, chance):
    """Somebody may always go on, nobody begins beyond the bound, and no gradient is staler than it allows."""
    clocks, missed = Clocks(range(workers), bound), {}
    present = set(range(workers))
    while present:
        free = [worker for worker in present if worker in missed or clocks.may_begin(worker)]
        assert free, "all wait for each other"
        worker = chance.choice(sorted(free))
        if chance.random() < 0.05:
            clocks.leave(worker)
            present.remove(worker)
            missed.pop(worker, None)
        elif worker in missed:
            assert missed.pop(worker) <= most_stale(workers, bound)
            missed = {other: updates + 1 for other, updates in missed.items()}
            clocks.finish(worker)
        else:
            assert clocks.lead(worker) <= bound
            missed[worker] = 0


def test_no_bound_and_a_wrong_one():
    clocks = Clocks((0, 1), None)
    for _ in range(99):
        clocks.finish(0)
    assert clocks.may_begin(0)
    with pytest.raises(ValueError, match="staleness=-1 must be 0"):
        Clocks((0, 1), -1)
