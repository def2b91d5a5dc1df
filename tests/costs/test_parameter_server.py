"""The busiest server's link carries no more than a ring's from as many servers on as the formula says."""

from __future__ import annotations

from minitrain.costs import parameter_server as costs
from minitrain.costs.data_parallel import Sizes
from minitrain.parameter_server import place


def test_where_servers_and_ring_cross():
    """By counting the bytes of large equal tensors; flags and chunks come to less than a thousandth."""
    for workers in range(2, 10):
        match = costs.servers_to_match(workers)
        over = []
        for servers in (match - 1, match):
            tensors = [Sizes(10_000 * workers, 4)] * (12 * servers)
            owners = place([p.elements * p.item_size for p in tensors], servers)
            over.append(
                costs.busiest_server(tensors, owners, servers, workers) / costs.busiest_in_ring(tensors, workers)
            )
        assert over[1] < 1.001 < over[0]
