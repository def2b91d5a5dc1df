"""What a mixture of experts costs: places and dropped tokens, losses at balance, bytes of the all-to-all, operations.

Notation: T tokens in a routing group, E experts, k experts per token, c the capacity factor, C places of an expert in a
group; f the part of tokens that chose each expert, P
the mean of their probabilities; h hidden, m the width inside an expert; w bytes per element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from minitrain.costs.communication import Traffic


def capacity(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
    """C = ⌊c · kT/E⌋, the places of each expert in a group of T tokens.

    The factor is read as the decimal fraction as written: 1.15 · 100 is 115, not a little less.

    Source: Fedus et al. 2021, "Switch Transformers", §2.2, equation 3; Lepikhin et al. 2020, "GShard", §2.2.
    """
    return math.floor(Fraction(factor).limit_denominator(10**6) * choices * tokens / experts)


def dropped_fraction(tokens: int, experts: int, places: int, choices: int = 1) -> float:
    """E/(kT) · Σ_{x>C} (x − C) · P(x), P binomial with T trials of probability k/E: what overflows if choices are even.

    Each token chooses k different experts, all sets of k equally likely. Then an expert is among a token's with
    probability k/E, for each token by itself. The sum is one of whole numbers, rounded once, at the end.

    Args:
        tokens: T; a few thousand at most, since the numbers have about T · log E digits.
        experts: E.
        places: C.
        choices: k.

    Source: derived; Fedus et al. 2021, §2.2 has it in words.
    """
    over = sum(
        (taken - places) * math.comb(tokens, taken) * choices**taken * (experts - choices) ** (tokens - taken)
        for taken in range(places + 1, tokens + 1)
    )
    chosen = choices * tokens
    return experts * over / (chosen * experts**tokens) if chosen else 0.0


def switch_loss(factor: float, parts: Sequence[float], means: Sequence[float]) -> float:
    """α · E · Σ fᵢPᵢ.

    Args:
        factor: α.
        parts: f, the part of all tokens that chose each expert.
        means: P, the mean over all tokens of each expert's probability.

    Source: Fedus et al. 2021, §2.2, equation 4.
    """
    return factor * len(parts) * math.fsum(f * p for f, p in zip(parts, means, strict=True))


def switch_loss_at_balance(factor: float) -> float:
    """α · E · Σ 1/E · 1/E = α.

    Source: Fedus et al. 2021, §2.2, equation 4.
    """
    return factor


def gshard_loss_at_balance(factor: float, experts: int) -> float:
    """α · 1/E · Σ 1/E · 1/E = α/E².

    Source: Lepikhin et al. 2020, algorithm 1, line 13.
    """
    return factor / experts**2


def squared_variation(values: Sequence[float]) -> float:
    """CV², the variance over the square of the mean: for an expert's importance, and for its load.

    Source: Shazeer et al. 2017, §4, equations 6 and 7, with the population variance.
    """
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values) / mean**2


def importance_loss_at_worst(factor: float, experts: int, choices: int) -> float:
    """w · (E/k − 1): the same k experts get all tokens in equal parts; at balance it is 0.

    Their mean is 1/E and their square's mean 1/(kE), if all experts together have 1.

    Source: Shazeer et al. 2017, §4, equations 6 and 7, with the population variance.
    """
    return factor * (experts / choices - 1)


class AllToAll(NamedTuple):
    """What one rank sends in a step of one layer.

    Attributes:
        dispatch: Its tokens to their experts, forward.
        combine: Its experts' outputs to their tokens, forward.
        combine_backward: Gradients of the outputs, the way of dispatch.
        dispatch_backward: Gradients of the tokens, the way of combine.
    """

    dispatch: Traffic
    combine: Traffic
    combine_backward: Traffic
    dispatch_backward: Traffic

    @property
    def total(self) -> Traffic:
        """All four together."""
        return self.dispatch + self.combine + self.combine_backward + self.dispatch_backward


def all_to_all(routes: Sequence[Sequence[int]], rank: int, hidden: int, item: int = 4) -> AllToAll:
    """h · w bytes for each route that leaves the rank, and as many for each that comes back.

    Args:
        routes: `routes[r][s]`: how many routes of rank r's tokens lead to experts of rank s.
        rank: The rank that sends.
        hidden: h.
        item: w.

    Source: Lepikhin et al. 2020, §3.3.1: dispatch and combine are one all-to-all each.
    """
    there = _sent([count for other, count in enumerate(routes[rank]) if other != rank], hidden * item)
    back = _sent([row[rank] for other, row in enumerate(routes) if other != rank], hidden * item)
    return AllToAll(there, back, there, back)


def _sent(counts: Sequence[int], size: int) -> Traffic:
    return Traffic(sum(counts) * size, sum(count > 0 for count in counts))


def expert_parameters(hidden: int, inner: int) -> int:
    """2hm + m + h: two matrices with their biases."""
    return 2 * hidden * inner + inner + hidden


def expert_flops(routes: int, hidden: int, inner: int) -> int:
    """4hm for each route, forward; backward costs twice as much.

    It does not depend on the number of experts: that is what a mixture is for.

    Source: Shazeer et al. 2017, §1.1.
    """
    return 4 * routes * hidden * inner


def router_flops(tokens: int, hidden: int, experts: int) -> int:
    """2hE for each token, forward; backward costs twice as much."""
    return 2 * tokens * hidden * experts


def load_bytes(experts: int, item: int = 8) -> int:
    """E · w: what a rank brings to the all-reduce of loads, one for each layer and step.

    Args:
        experts: E.
        item: w, of a count.

    Source: Wang et al. 2024, "Auxiliary-loss-free load balancing", algorithm 1.
    """
    return experts * item


def bias_steps(tokens: int, gap: float, speed: float) -> int:
    """⌈(T/2 − ½) δ / 2u⌉ steps until biases share tokens evenly between two experts, if at first one has all.

    Token t = 0 … T − 1 scores expert 0 higher than expert 1, by (t + ½) δ. A step lowers one bias and raises the other
    by u, so after i steps expert 0 keeps the tokens that prefer it by more than 2ui. It has at most half of them as
    soon as this reaches token T/2 − 1, by (T/2 − ½) δ.

    Args:
        tokens: T on all ranks, an even number.
        gap: δ.
        speed: u; 2u a multiple of δ, so that no token likes both experts equally.

    Source: derived.
    """
    return math.ceil((tokens - 1) / 2 * gap / (2 * speed) - 1e-9)


def bias_overshoot(gap: float, speed: float) -> int:
    """2u/δ − 1: how many tokens above T/2 the busier expert has at most, as soon as expert 0 has no more than T/2.

    In a step, 2u/δ tokens change their expert. So expert 0 had at least T/2 + 1 and now has at least T/2 + 1 − 2u/δ;
    then the same tokens go back and forth. The terms are those of `bias_steps`.

    Source: derived.
    """
    return round(2 * speed / gap) - 1


def shared_parameters(experts: int, shared: int, hidden: int, inner: int) -> int:
    """(E + s) (2hm + m + h) + hE: all experts, and the router, which does not score the shared ones.

    Args:
        experts: E, those to choose from.
        shared: s.
        hidden: h.
        inner: m.

    Source: Dai et al. 2024, "DeepSeekMoE", §3.2.
    """
    return (experts + shared) * expert_parameters(hidden, inner) + hidden * experts


def shared_flops(tokens: int, experts: int, choices: int, shared: int, hidden: int, inner: int) -> int:
    """(k + s) · 4hm + 2hE for each token, forward.

    Args:
        tokens: T.
        experts: E, those to choose from.
        choices: k, of them.
        shared: s.
        hidden: h.
        inner: m.

    Source: Dai et al. 2024, "DeepSeekMoE", §3.2.
    """
    return expert_flops(tokens * (choices + shared), hidden, inner) + router_flops(tokens, hidden, experts)


def z_loss(factor: float, logits: Sequence[Sequence[float]]) -> float:
    """α · 1/T · Σ z², z = ln Σ exp(hⱼ) of a token.

    Args:
        factor: α, 0.001 in the paper.
        logits: h, a row for each token.

    Source: Zoph et al. 2022, "ST-MoE", §3.3, equation 5.
    """
    return factor * math.fsum(_logarithm(row) ** 2 for row in logits) / len(logits)


def z_loss_gradient(factor: float, logits: Sequence[float], expert: int, tokens: int) -> float:
    """α · 2z/T · pᵢ: how the z-loss grows with a token's logit for expert i, since dz/dhᵢ is the softmax pᵢ.

    Args:
        factor: α.
        logits: The token's own.
        expert: i.
        tokens: T.

    Source: derived.
    """
    z = _logarithm(logits)
    return factor * 2 * z / tokens * math.exp(logits[expert] - z)


def _logarithm(logits: Sequence[float]) -> float:
    most = max(logits)
    return most + math.log(math.fsum(math.exp(logit - most) for logit in logits))
