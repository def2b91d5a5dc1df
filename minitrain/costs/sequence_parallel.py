"""The costs of sequence parallelism: calls and bytes per layer, gradients summed once per step, and bytes kept.

A layer is a block of `minitrain.models.gpt`, as in `minitrain.sequence_parallel.megatron`. t ranks (`tensor`); b
sequences of s tokens, width h, a heads, L layers; w bytes per element; S = bsh·w. `keep_gathered`: the gathered inputs
are kept for backward; `sequence_parallel`: tensors outside attention and MLP are divided along the sequence.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs.activations import gathered_inputs, layer_terms
from minitrain.costs.communication import Traffic, ring_all_gather, ring_reduce_scatter


class Calls(NamedTuple):
    """How often each of two collectives is called, with a payload of S bytes each time."""

    all_gathers: int
    reduce_scatters: int


class Ways(NamedTuple):
    """The calls in forward and in backward."""

    forward: Calls
    backward: Calls


class TrafficWays(NamedTuple):
    """The bytes that a rank sends in forward and in backward."""

    forward: Traffic
    backward: Traffic


def layer_calls(keep_gathered: bool = False) -> Ways:
    """g before attention and MLP, ḡ after; backward the conjugates, g again if not kept (Korthikanti 2022, §4.2.2)."""
    return Ways(Calls(2, 2), Calls(2 + 2 * (not keep_gathered), 2))


def ends_calls(keep_gathered: bool = False) -> Ways:
    """Outside the layers: in forward ḡ of the embedding and g of the head, in backward the conjugates, and g again."""
    return Ways(Calls(1, 1), Calls(1 + (not keep_gathered), 1))


def model_calls(layers: int, keep_gathered: bool = False) -> Ways:
    """2L + 1 of each in forward; in backward 2L + 1 reduce-scatters, 2L + 1 or 4L + 2 all-gathers. Without the loss."""
    pairs = zip(layer_calls(keep_gathered), ends_calls(keep_gathered), strict=True)
    return Ways(*(Calls(*(layers * a + b for a, b in zip(one, ends, strict=True))) for one, ends in pairs))


def layer_traffic(
    batch: int, seq: int, hidden: int, ranks: int, rank: int, keep_gathered: bool = False, item: int = 4
) -> TrafficWays:
    """4(t−1)/t · S bytes forward, 4 or 6(t−1)/t · S backward: what a rank sends (Korthikanti et al. 2022, §4.2.2)."""
    return _traffic(layer_calls(keep_gathered), batch * seq * hidden, item, ranks, rank)


def model_traffic(
    batch: int, seq: int, hidden: int, layers: int, ranks: int, rank: int, keep_gathered: bool = False, item: int = 4
) -> TrafficWays:
    """The bytes that a rank sends through the ring in a step, without those of the loss: `model_calls`."""
    return _traffic(model_calls(layers, keep_gathered), batch * seq * hidden, item, ranks, rank)


def _traffic(calls: Ways, elements: int, item: int, ranks: int, rank: int) -> TrafficWays:
    gathered = ring_all_gather(elements, item, ranks, rank)
    scattered = ring_reduce_scatter(elements, item, ranks, rank)
    return TrafficWays(*(way.all_gathers * gathered + way.reduce_scatters * scattered for way in calls))


STATISTICS, MASK = "norms: mean and 1/deviation", "scores: the causal mask"
"""The terms that torch keeps and the paper leaves out, as `kept_terms` names them."""


def deviations(
    batch: int, seq: int, tensor: int = 1, sequence_parallel: bool = False, statistic: int = 2
) -> dict[str, float]:
    """Bytes that torch keeps in a layer beyond the account of the paper: statistics of norms, and an s × s causal mask.

    `statistic`: bytes of a mean, 2 on a CPU where the norm's weight has 16 bits, 4 on a GPU. (For torch 2.13,
    `aten/src/ATen/native/layer_norm.cpp`. Its own dropout keeps factors in the input's dtype on CPUs.)
    """
    tokens = batch * seq / (tensor if sequence_parallel else 1)
    return {STATISTICS: 2 * 2 * tokens * statistic, MASK: float(seq * seq)}


def kept_terms(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    keep_gathered: bool = False,
    statistic: int = 2,
) -> dict[str, float]:
    """Bytes that torch keeps of a layer in 16 bits with dropout and written-out attention, by operation.

    These are the paper's terms, the gathered inputs if kept, and `deviations` (Korthikanti et al. 2022, §4.1 and §4.2).
    """
    terms = layer_terms(batch, seq, hidden, heads, tensor, sequence_parallel)
    if sequence_parallel and keep_gathered:
        for name in ("query, key, value projections: their input", "up projection: its input"):
            terms[name] += gathered_inputs(batch, seq, hidden, tensor) / 2
    return terms | deviations(batch, seq, tensor, sequence_parallel, statistic)
