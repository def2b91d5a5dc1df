"""The cost of tensor parallelism: all-reduces and bytes of a layer, and parameters that a rank holds.

A layer is a block of `minitrain.models.gpt`: attention and MLP, each with one all-reduce forward and one backward. t
ranks; b sequences of s tokens, width h, a query heads, k key and value heads; w bytes per element.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs import composition
from minitrain.costs.communication import Traffic, ring_all_gather, ring_all_reduce
from minitrain.costs.composition import Shape


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
    return 2 * ring_all_reduce(batch * seq * hidden, item, ranks, rank)


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
    shape = Shape(1, hidden, heads, 1, 1, kv_heads=kv_heads or heads)
    return sum(each.elements for each in composition.layer_parameters(shape, 0, ranks))
