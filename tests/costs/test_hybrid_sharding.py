"""The limits of hybrid sharding are stage 3 and data parallelism, and between them one link is traded for the other."""

from __future__ import annotations

import pytest

from minitrain.costs import hybrid_sharding as costs
from minitrain.costs.communication import ring_all_reduce
from minitrain.costs.zero import Line, step_traffic

LINES = [Line(24, 4), Line(10, 2), Line(7, 4, trainable=False)]


@pytest.mark.parametrize("ranks", (1, 2, 3, 4))
@pytest.mark.parametrize("micro_batches", (1, 3))
def test_one_node_is_stage_3_and_nodes_of_one_rank_are_data_parallelism(ranks, micro_batches):
    for rank in range(ranks):
        one_node = costs.step_traffic(LINES, 1, ranks, rank, micro_batches)
        assert one_node.within == step_traffic(3, LINES, ranks, rank, micro_batches)
        assert one_node.across.bytes == one_node.across.messages == 0
        alone = costs.step_traffic(LINES, ranks, 1, rank, micro_batches)
        assert alone.within.bytes == 0
        # An all-reduce of each line of gradients, once per step.
        expected = [ring_all_reduce(line.elements, line.item_size, ranks, rank).bytes for line in LINES[:2]]
        assert alone.across.bytes == sum(expected)


def test_stage_3_over_all_ranks_sends_every_gathering_out_of_the_node():
    line = [Line(1024, 2)]
    # 3A(n − 1)/n of 2,048 bytes: 8 ranks, 5 micro-batches
    assert costs.out_of_a_node_without(line, 4, 2, 5) == 3 * 5 * 2048 * 7 // 8
    # Frozen parameters are gathered twice, and not reduced.
    assert costs.out_of_a_node_without([Line(1024, 2, trainable=False)], 4, 2, 5) == 2 * 5 * 2048 * 7 // 8
