"""Bytes per second and waits between GPUs in nodes, against cases worked out by hand."""

from __future__ import annotations

import pytest

from minitrain.costs.fabric import DEFAULT, Fabric, pieces
from minitrain.costs.roofline import MACHINES

H100, A100 = MACHINES["H100"], MACHINES["A100 80 GB"]
FULL = Fabric(reached=1.0, reached_out=1.0)


def test_a_ring_has_the_cards_of_all_its_ranks_in_a_node():
    assert [FULL.ring(H100, ranks) for ranks in (2, 8)] == [450e9, 450e9], "NVLink within the node"
    # Eight cards of 50 GB/s; every second, fourth and eighth rank of a node has as many fewer.
    assert [FULL.ring(H100, 64, stride) for stride in (1, 2, 4, 8, 16)] == [400e9, 200e9, 100e9, 50e9, 50e9]
    assert FULL.ring(H100._replace(network=100e9), 64) == 450e9, "no more than NVLink carries"
    # A DGX A100's eight cards of 200 Gbit/s: NVIDIA/nccl, issue 812, measures 192 of 200 GB/s; poorer fabrics less.
    assert FULL.ring(A100, 16) == 200e9 and DEFAULT.ring(A100, 16) == 160e9


def test_messages_and_all_to_alls_have_their_rank_s_card():
    assert [FULL.message(H100, 8), FULL.message(H100, 9), FULL.message(H100, 2, 8)] == [450e9, 50e9, 50e9]
    # nccl-tests, issue 267: what goes to the other 24 of 32 ranks leaves the node, over the slow way.
    assert FULL.leaving(32) == 24 / 32 and FULL.leaving(8) == 7 / 8 and FULL.leaving(8, 8) == 7 / 8


def test_a_long_ring_waits_for_its_hops():
    # 2,048 ranks in 256 nodes: 1,792 hops of 3 µs and 255 of 10 µs.
    assert Fabric().wait(2048) == pytest.approx(1792 * 3e-6 + 255 * 10e-6)
    assert Fabric().wait(8) == pytest.approx(7 * 3e-6) and Fabric().wait(1) == 0
    assert Fabric().wait(256, 8) == pytest.approx(255 * 10e-6), "one rank of each node"


@pytest.mark.parametrize(("ranks", "count"), [(8, 33), (512, 14), (2048, 4), (8192, 1)])
def test_gradients_travel_in_pieces_that_are_worth_their_wait(ranks, count):
    assert pieces(6.66e9, ranks, 32) == count  # a million parameters for each rank, or a layer
