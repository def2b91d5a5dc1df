"""The rule of bounded staleness in every order of events: the worst that can come is the formula's."""

from __future__ import annotations

import pytest

from minitrain.costs.staleness import most_stale
from minitrain.lessons.parameter_server.orders import every_order


@pytest.mark.parametrize(("workers", "bound"), [(1, 2), (2, 0), (2, 4), (3, 1), (3, 2), (4, 0)])
def test_the_worst_of_all_orders_is_the_bound(workers, bound):
    worst = every_order(workers, bound)
    assert worst.lead == (bound if workers > 1 else 0)
    assert worst.staleness == most_stale(workers, bound)
