"""Bytes of averages by link, and where ranks settle, against numbers worked out by hand."""

from __future__ import annotations

from minitrain.costs import local_sgd as costs


def test_bytes():
    # 10 steps with H = 4 have two averages; the last two steps are not averaged.
    assert costs.averaged_bytes(1000, 10, 4) == 2000
    assert costs.averaged_bytes(1000, 10, 11) == 0
    # 10 elements on 4 ranks of a node: each carries 3, of which the last has zeros.
    assert costs.bytes_within(40, 48, 10, 4) == (400, 96)
    assert costs.bytes_across(10, 4, 10, 4, local=4) == 2 * 3 * 4
    assert costs.outer_bytes(40) == 80
    # The paper's 500: DiLoCo communicates 500 times less.
    assert costs.averaged_bytes(7, 88_000, 1) == 500 * costs.averaged_bytes(7, 88_000, 500)
