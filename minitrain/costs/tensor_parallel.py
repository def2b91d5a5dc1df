"""The cost of tensor parallelism: all-reduces and bytes of a layer, parameters that a rank holds, and its products.

A layer is a block of `minitrain.models.gpt`: attention and MLP, each with one all-reduce forward and one backward.

Notation: t ranks; b sequences of s tokens, width h, a query heads, k key and value heads; w bytes per element.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs.communication import Traffic, ring_all_gather, ring_all_reduce


class Ways(NamedTuple):
    """A number of forward and one of backward."""

    forward: int
    backward: int


def all_reduces(layers: int = 1) -> Ways:
    """2L forward, g after attention and after the MLP; 2L backward, f before each.

    Source: Shoeybi et al. 2019, "Megatron-LM", §3, figure 4.
    """
    return Ways(2 * layers, 2 * layers)


def payload(batch: int, seq: int, hidden: int, item: int = 4) -> int:
    """bsh·w bytes go into each all-reduce: the residual stream, or its gradient, whatever the number of ranks.

    Source: Korthikanti et al. 2022, §4.2.2; Narayanan et al. 2021, §3.2.
    """
    return batch * seq * hidden * item


def layer_traffic(batch: int, seq: int, hidden: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """What a rank sends forward through the ring, and the same backward: two all-reduces, 4(t−1)/t · bsh·w.

    Exactly from the ring's chunks. Forward and backward together 8(t−1)/t · bsh·w.

    Source: Narayanan et al. 2021, §3.2; Patarasuk & Yuan 2009.
    """
    one = ring_all_reduce(batch * seq * hidden, item, ranks, rank)
    return one + one


def row_first_mlp_traffic(batch: int, seq: int, hidden: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """What a rank sends forward through the ring, and the same backward, for an MLP that is cut the other way round.

    An all-reduce of 4bsh elements, since the nonlinearity needs the whole sum (backward: the gradient before it), and
    an all-gather of bsh, of the output (backward: of the input's gradient). 9(t−1)/t · bsh·w, against 2(t−1)/t · bsh·w.

    Source: Shoeybi et al. 2019, §3, the option that is not taken; Patarasuk & Yuan 2009.
    """
    wide = ring_all_reduce(4 * batch * seq * hidden, item, ranks, rank)
    return wide + ring_all_gather(batch * seq * hidden, item, ranks, rank)


def column_parameters(inputs: int, outputs: int, ranks: int, bias: bool = True) -> int:
    """Parameters of a column-parallel layer on each rank: (inputs + 1) · outputs/t, the bias cut with the outputs.

    Source: Shoeybi et al. 2019, §3.
    """
    return (inputs + bias) * (outputs // ranks)


def row_parameters(inputs: int, outputs: int, ranks: int, bias: bool = True) -> int:
    """Parameters of a row-parallel layer on each rank: inputs/t · outputs, and the whole bias.

    Source: Shoeybi et al. 2019, §3.
    """
    return (inputs // ranks + bias) * outputs


def layer_parameters(hidden: int, heads: int, ranks: int, kv_heads: int | None = None) -> int:
    """Parameters of a layer on each rank, 12h²/t + 7h/t + 6h where every head has its own key and value.

    The 6h are on every rank: two norms, and the biases of the two row-parallel matrices. Key and value projections are
    cut over min(k, t) ranks.

    Source: Shoeybi et al. 2019, §3; counted on `minitrain.models.gpt`.
    """
    kv_heads = kv_heads or heads
    kv_width = kv_heads * (hidden // heads)
    attention = column_parameters(hidden, hidden, ranks) + row_parameters(hidden, hidden, ranks)
    attention += 2 * column_parameters(hidden, kv_width, min(kv_heads, ranks))
    mlp = column_parameters(hidden, 4 * hidden, ranks) + row_parameters(4 * hidden, hidden, ranks)
    return attention + mlp + 4 * hidden


def layer_flops(batch: int, seq: int, hidden: int, heads: int, ranks: int = 1, kv_heads: int | None = None) -> Ways:
    """Floating-point operations of a layer's products on each rank: 24bsh²/t + 4bs²h/t forward, twice that backward.

    A product of m×k and k×n takes 2mkn, and its backward two such products. Scores that the causal mask throws away are
    computed, and counted. Backward of a layer whose input needs no gradient does less.

    Source: Narayanan et al. 2021, appendix; Korthikanti et al. 2022, appendix A.
    """
    kv_heads = kv_heads or heads
    kv_width = kv_heads * (hidden // heads) // min(kv_heads, ranks)
    tokens = batch * seq
    projections = 2 * tokens * hidden * (2 * (hidden // ranks) + 2 * kv_width)
    scores = 2 * 2 * batch * seq * seq * (hidden // ranks)
    mlp = 2 * 2 * tokens * hidden * (4 * hidden // ranks)
    forward = projections + scores + mlp
    return Ways(forward, 2 * forward)
