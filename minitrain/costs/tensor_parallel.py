"""The cost of tensor parallelism: all-reduces and bytes of a layer, parameters that a rank holds, and its products.

A layer is a block of `minitrain.models.gpt`: attention and MLP, each with one all-reduce forward and one backward. t
ranks; b sequences of s tokens, width h, a query heads, k key and value heads; w bytes per element.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs.communication import Traffic, ring_all_gather, ring_all_reduce


class Ways(NamedTuple):
    """A number of forward and one of backward."""

    forward: int
    backward: int


def all_reduces(layers: int = 1) -> Ways:
    """2L forward, g after attention and MLP; 2L backward, f before each (Shoeybi et al. 2019, §3, figure 4)."""
    return Ways(2 * layers, 2 * layers)


def payload(batch: int, seq: int, hidden: int, item: int = 4) -> int:
    """bsh·w bytes into each all-reduce, for any number of ranks (Korthikanti et al. 2022, §4.2.2)."""
    return batch * seq * hidden * item


def layer_traffic(batch: int, seq: int, hidden: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """4(t−1)/t · bsh·w: bytes that a rank sends in two all-reduces, one way (Narayanan et al. 2021, §3.2)."""
    one = ring_all_reduce(batch * seq * hidden, item, ranks, rank)
    return one + one


def row_first_mlp_traffic(batch: int, seq: int, hidden: int, ranks: int, rank: int, item: int = 4) -> Traffic:
    """9(t−1)/t · bsh·w forward, and as much backward: an MLP that is cut the other way round, usually 2(t−1)/t · bsh·w.

    All-reduce of 4bsh before the nonlinearity, all-gather of bsh of the output (Shoeybi et al. 2019, §3, not taken).
    """
    wide = ring_all_reduce(4 * batch * seq * hidden, item, ranks, rank)
    return wide + ring_all_gather(batch * seq * hidden, item, ranks, rank)


def column_parameters(inputs: int, outputs: int, ranks: int, bias: bool = True) -> int:
    """(inputs + 1) · outputs/t: parameters of a column-parallel layer on each rank (Shoeybi et al. 2019, §3)."""
    return (inputs + bias) * (outputs // ranks)


def row_parameters(inputs: int, outputs: int, ranks: int, bias: bool = True) -> int:
    """inputs/t · outputs, and the whole bias: a rank's parameters of a row-parallel layer (Shoeybi et al. 2019, §3)."""
    return (inputs // ranks + bias) * outputs


def layer_parameters(hidden: int, heads: int, ranks: int, kv_heads: int | None = None) -> int:
    """12h²/t + 7h/t + 6h parameters of a layer on each rank, where every head has its own key and value.

    Norms and row biases, 6h, are on every rank; k key and value heads are cut over min(k, t) (Shoeybi et al. 2019, §3).
    """
    kv_heads = kv_heads or heads
    kv_width = kv_heads * (hidden // heads)
    attention = column_parameters(hidden, hidden, ranks) + row_parameters(hidden, hidden, ranks)
    attention += 2 * column_parameters(hidden, kv_width, min(kv_heads, ranks))
    mlp = column_parameters(hidden, 4 * hidden, ranks) + row_parameters(4 * hidden, hidden, ranks)
    return attention + mlp + 4 * hidden


def layer_flops(batch: int, seq: int, hidden: int, heads: int, ranks: int = 1, kv_heads: int | None = None) -> Ways:
    """24bsh²/t + 4bs²h/t operations forward, with masked scores; twice as many backward (Narayanan et al. 2021)."""
    kv_heads = kv_heads or heads
    kv_width = kv_heads * (hidden // heads) // min(kv_heads, ranks)
    tokens = batch * seq
    projections = 2 * tokens * hidden * (2 * (hidden // ranks) + 2 * kv_width)
    scores = 2 * 2 * batch * seq * seq * (hidden // ranks)
    mlp = 2 * 2 * tokens * hidden * (4 * hidden // ranks)
    forward = projections + scores + mlp
    return Ways(forward, 2 * forward)
