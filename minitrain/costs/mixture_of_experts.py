"""What a mixture of experts costs: places and dropped tokens, losses at balance, bytes of the all-to-all, operations.

T tokens in a routing group (`tokens`), E experts, k experts per token (`choices`), c the capacity factor, C `places` of
an expert in a group; f (`parts`) the part of tokens that chose each expert, P (`means`) the mean of their
probabilities, α a loss's `factor`; h hidden, m the width inside an expert (`inner`); w bytes per element (`item`);
N nodes, of which a token reaches M at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from minitrain.costs.communication import Traffic


def capacity(tokens: int, experts: int, factor: float, choices: int = 1) -> int:
    """C = ⌊c · kT/E⌋, the places of each expert in a group of T tokens; c is read as the decimal fraction as written.

    Source: Fedus et al. 2021, "Switch Transformers", §2.2, equation 3; Lepikhin et al. 2020, "GShard", §2.2.
    """
    return math.floor(Fraction(factor).limit_denominator(10**6) * choices * tokens / experts)


def dropped_fraction(tokens: int, experts: int, places: int, choices: int = 1) -> float:
    """E/(kT) · Σ_{x>C} (x − C) · P(x), P binomial with T trials of probability k/E: what overflows if choices are even.

    Exact, in whole numbers of about T · log E digits (in words: Fedus et al. 2021, §2.2).
    """
    over = sum(
        (taken - places) * math.comb(tokens, taken) * choices**taken * (experts - choices) ** (tokens - taken)
        for taken in range(places + 1, tokens + 1)
    )
    chosen = choices * tokens
    return experts * over / (chosen * experts**tokens) if chosen else 0.0


def switch_loss(factor: float, parts: Sequence[float], means: Sequence[float]) -> float:
    """α · E · Σ fᵢPᵢ (Fedus et al. 2021, §2.2, equation 4)."""
    return factor * len(parts) * math.fsum(f * p for f, p in zip(parts, means, strict=True))


def switch_loss_at_balance(factor: float) -> float:
    """α · E · Σ 1/E · 1/E = α."""
    return factor


def gshard_loss_at_balance(factor: float, experts: int) -> float:
    """α · 1/E · Σ 1/E · 1/E = α/E²."""
    return factor / experts**2


def squared_variation(values: Sequence[float]) -> float:
    """CV², the population variance over the square of the mean (Shazeer et al. 2017, §4, equations 6 and 7)."""
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / len(values) / mean**2


def importance_loss_at_worst(factor: float, experts: int, choices: int) -> float:
    """w · (E/k − 1), w the loss's factor: k experts get all tokens in equal parts (Shazeer et al. 2017, §4)."""
    return factor * (experts / choices - 1)


class AllToAll(NamedTuple):
    """What one rank sends in a step of one layer: dispatch and combine, and their gradients the opposite ways."""

    dispatch: Traffic
    combine: Traffic
    combine_backward: Traffic
    dispatch_backward: Traffic

    @property
    def total(self) -> Traffic:
        """All four together."""
        return self.dispatch + self.combine + self.combine_backward + self.dispatch_backward


def all_to_all(routes: Sequence[Sequence[int]], rank: int, hidden: int, item: int = 4) -> AllToAll:
    """h · w bytes for each route that leaves the rank, and for each that comes back (Lepikhin et al. 2020, §3.3.1).

    `routes[r][s]`: how many routes of rank r's tokens lead to experts of rank s.
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
    """4hm for each route, forward, for any number of experts; twice as much backward (Shazeer et al. 2017, §1.1)."""
    return 4 * routes * hidden * inner


def router_flops(tokens: int, hidden: int, experts: int) -> int:
    """2hE for each token, forward; backward costs twice as much."""
    return 2 * tokens * hidden * experts


def load_bytes(experts: int, item: int = 8) -> int:
    """E · w: what a rank brings to the all-reduce of loads, per layer and step (Wang et al. 2024, algorithm 1)."""
    return experts * item


def nodes_of_a_token(experts: int, choices: int, nodes: int) -> float:
    """N (1 − C(E − E/N, k) / C(E, k)): nodes with some of a token's k experts, if all sets of k are equally likely."""
    # A node has none of them if all k are among the E − E/N experts elsewhere (hypergeometric).
    return nodes * (1 - math.comb(experts - experts // nodes, choices) / math.comb(experts, choices))


def node_bytes(tokens: int, nodes: int, reached: float, hidden: int, item: int = 4) -> float:
    """(N − 1)/N · m T h w: T tokens' rows that leave a node, if each goes to m nodes once (DeepSeek-V3, §3.2.2)."""
    return (nodes - 1) / nodes * reached * tokens * hidden * item


def shared_parameters(experts: int, shared: int, hidden: int, inner: int) -> int:
    """(E + s) (2hm + m + h) + hE: E experts, s shared ones, which no router scores (Dai et al. 2024, §3.2)."""
    return (experts + shared) * expert_parameters(hidden, inner) + hidden * experts


def shared_flops(tokens: int, experts: int, choices: int, shared: int, hidden: int, inner: int) -> int:
    """(k + s) · 4hm + 2hE for each token, forward (Dai et al. 2024, §3.2)."""
    return expert_flops(tokens * (choices + shared), hidden, inner) + router_flops(tokens, hidden, experts)


def z_loss(factor: float, logits: Sequence[Sequence[float]]) -> float:
    """α · 1/T · Σ z², z = ln Σ exp(hⱼ) of a token's logits h (Zoph et al. 2022, "ST-MoE", §3.3, equation 5)."""
    return factor * math.fsum(_logarithm(row) ** 2 for row in logits) / len(logits)


def z_loss_gradient(factor: float, logits: Sequence[float], expert: int, tokens: int) -> float:
    """α · 2z/T · pᵢ: how the z-loss grows with a token's logit for expert i, since dz/dhᵢ is the softmax pᵢ."""
    z = _logarithm(logits)
    return factor * 2 * z / tokens * math.exp(logits[expert] - z)


def _logarithm(logits: Sequence[float]) -> float:
    most = max(logits)
    return most + math.log(math.fsum(math.exp(logit - most) for logit in logits))
