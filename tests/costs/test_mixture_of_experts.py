"""The capacity of experts, and nodes of a token, by hand; lessons have the rest."""

from __future__ import annotations

import pytest

from minitrain.costs import mixture_of_experts as costs


def test_capacity_reads_the_factor_as_it_was_written():
    assert costs.capacity(100, 1, 1.15) == 115  # 1.15 · 100 in floating point is 114.99…
    assert costs.capacity(10, 4, 1.25) == 3
    assert costs.capacity(10, 4, 1.25, choices=2) == 6
    assert costs.capacity(7, 8, 1.0) == 0
    assert costs.capacity(6, 3, 2 / 3 * 3) == 4


def test_nodes_of_a_token():
    assert costs.nodes_of_a_token(256, 1, 8) == pytest.approx(1)
    assert costs.nodes_of_a_token(12, 12, 4) == 4
    # Two of four experts on two nodes: of 6 sets, 2 are on one node, and 4 on both.
    assert costs.nodes_of_a_token(4, 2, 2) == pytest.approx((2 * 1 + 4 * 2) / 6)
