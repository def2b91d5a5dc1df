"""Servers' links: both ends count the same, they cross the ring's where the formula says, and the time of a step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.costs import parameter_server as costs
from minitrain.costs.data_parallel import Sizes
from minitrain.parameter_server import place

parameters = st.lists(
    st.builds(lambda elements, item: Sizes(elements, item, str(item)), st.integers(1, 50), st.sampled_from((2, 4))),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60)
@given(parameters, st.integers(1, 3), st.integers(1, 5))
def test_what_servers_send_workers_receive(found, servers, workers):
    owners = place([p.elements * p.item_size for p in found], servers)
    links = [costs.server_link(found, owners, server, workers) for server in range(servers)]
    worker = costs.worker_link(found, owners, servers)
    for way, back in ((0, 1), (1, 0)):
        assert sum(link[way].bytes for link in links) == workers * worker[back].bytes
        assert sum(link[way].messages for link in links) == workers * worker[back].messages
    whole = sum(p.elements * p.item_size for p in found)
    assert worker.bytes == 2 * whole + sum(p.item_size for p in found)
    assert max(link.bytes for link in links) == costs.busiest_server(found, owners, servers, workers)


def test_where_servers_and_ring_cross():
    """With large equal tensors the exact counts cross where the formula says."""
    for workers in range(2, 10):
        match = costs.servers_to_match(workers)
        assert costs.over_ring(workers, match) <= 1 < costs.over_ring(workers, match - 1) if match > 1 else True
        for servers in {match, max(1, match - 1)}:
            tensors = [Sizes(10_000 * workers, 4)] * (12 * servers)
            owners = place([p.elements * p.item_size for p in tensors], servers)
            exact = costs.busiest_server(tensors, owners, servers, workers) / costs.busiest_in_ring(tensors, workers)
            assert exact == pytest.approx(costs.over_ring(workers, servers), rel=1e-3)


@pytest.mark.parametrize("workers", (1, 2, 5))
def test_the_time_of_a_step_is_that_of_its_last_push(workers):
    """Step by step: pulls leave one after the other, a push comes in when it has left and the port is free."""
    alpha, beta, compute, pull, push = 3.0, 0.5, 100.0, 8.0, 10.0
    free = 0.0
    for worker in range(workers):
        here = (worker + 1) * (alpha + beta * pull)
        left = here + compute + alpha + beta * push
        free = max(left, free + alpha + beta * push)
    assert free == costs.step_time(pull, push, workers, alpha, beta, compute)
