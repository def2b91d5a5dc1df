"""The full form of `minitrain.mixture_of_experts.expert_choice` adds groups, and a cap on the experts of a token.

**The cap.** If a token may have at most b experts, the experts exchange tokens until none has more, so that the sum of
scores loses least (`within_cap`). The paper solves the same problem with an entropy term, by 100 rounds with λ = 0.001,
which can break the cap: entries of its matrix can be fractions, and 100 rounds leave it far from its limit.

Open `mixture_of_experts/full/router.py` first, then `ExpertChoice`; what follows it is for the cap alone.
**Source.** Zhou et al. 2022, "Mixture-of-experts with expert choice routing", §3.3.
**Cost.** `minitrain.costs.mixture_of_experts.capacity`: k = ⌊n · c/e⌋ tokens for each expert.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minitrain.mixture_of_experts.full.router import Router, not_finite, refuse
from minitrain.mixture_of_experts.full.routing import Routing


class ExpertChoice(Router):
    """Each expert's best tokens.

    `hidden`, `experts` and `layer` are those of `Router`.

    Args:
        capacity_factor: c, how many experts a token has on average; each expert takes k = ⌊n · c/e⌋ of a group's n.
        most: b, the cap: how many experts a token has at most. None: any number.

    Raises:
        ValueError: The cap leaves too few places, or a number is out of range.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float = 2.0,
        most: int | None = None,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, layer=layer)
        if capacity_factor > experts:
            raise ValueError(
                f"capacity_factor={capacity_factor} asks each of experts={experts} for more tokens than there are; use "
                f"at most {experts}"
            )
        if most is not None and not capacity_factor <= most:
            raise ValueError(
                f"most={most} experts a token are fewer than their mean, capacity_factor={capacity_factor}; use no "
                "fewer"
            )
        self.capacity_factor, self.most = capacity_factor, most

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        scores = self.scores(tokens)
        refuse(int(not_finite(scores)), scores)  # before the cap, whose search would not end
        s = scores.softmax(-1).transpose(1, 2)  # Sᵀ, [groups, experts, size]: the softmax is over experts
        k = self.capacity(tokens.shape[1], self.capacity_factor) or 0
        preference = s
        if self.most is not None:
            # Detached: a choice has no gradient; the weights have one. In float64, where the search must not round.
            preference = s.detach().double()
            preference = preference.masked_fill(~within_cap(preference, k, self.most), -math.inf)
        index = preference.topk(k, -1).indices  # [groups, experts, k], highest score first
        weight = s.gather(-1, index)

        first = torch.arange(len(s), device=x.device).view(-1, 1, 1) * tokens.shape[1]
        token = (first + index).flatten()
        expert = torch.arange(self.experts, device=x.device).view(1, -1, 1).expand_as(index).flatten()
        place = torch.arange(k, device=x.device).expand_as(index).flatten()
        # Experts have chosen, but lists are in the order of tokens, as every router's.
        order = (token * self.experts + expert).argsort()
        return Routing(
            token[order],
            expert[order],
            weight.flatten()[order].to(x.dtype),
            place[order],
            token.new_empty(0, 2),  # no expert overflows: a token that is not chosen has not chosen either
            s.new_zeros(()),
            len(x),
            self.experts,
            k,
            len(s),
        )


def within_cap(
    preference: Float[Tensor, "groups experts size"], k: int, most: int
) -> Bool[Tensor, "groups experts size"]:
    """k tokens for each expert: the choice with the largest sum of preferences that gives no token more than b experts.

    Each expert begins with the k tokens that it prefers. While a token has too many experts, one of them exchanges it
    for another token. If that one has b experts already, one of these exchanges it in turn, and so on, until a token
    has room. Of all such chains of exchanges we take the one by which the sum loses least.

    A chain always exists, because e · k ≤ n · b. Let R be the tokens that chains reach, and X the experts that have a
    token in R. Each of them has every token outside R, since otherwise it could exchange one of R for it. So it has
    k − (n − |R|) tokens in R, and no choice can give it fewer there. A choice that keeps the cap has at most b · |R|
    experts on the tokens of R; hence so has ours, and if one of these has more than b experts, another has room.

    Args:
        preference: The value of a token in the sum if an expert chooses it.
        k: Tokens of each expert.
        most: b.

    Raises:
        ValueError: The cap leaves too few places.

    Source: Ahuja, Magnanti & Orlin 1993, "Network flows", §9.7: successive shortest paths, for a flow of least cost.
    """
    _, experts, size = preference.shape
    if experts * k > size * most:
        raise ValueError(
            f"most={most} allows {size} tokens {size * most} experts in all, but experts={experts} with k={k} tokens "
            f"each need {experts * k}; use at least most={-(-experts * k // size)}, or a smaller k"
        )
    chosen = torch.zeros_like(preference, dtype=torch.bool).scatter(-1, preference.topk(k, -1).indices, True)
    for mine, liking in zip(chosen, preference, strict=True):
        # Each round waits for the GPU, which only the capped variant has to afford.
        while bool((mine.sum(0) > most).any()):
            _exchange(mine, liking, most)
    return chosen


def _exchange(chosen: Bool[Tensor, "experts size"], preference: Float[Tensor, "experts size"], most: int) -> None:
    """The cheapest chain of exchanges from a token with more than b experts to one with fewer, done in `chosen`."""
    experts = chosen.sum(0)
    # The loss of the sum until each token has one more expert, and a token with too many has one fewer.
    loss = torch.zeros_like(preference[0]).masked_fill(experts <= most, math.inf)
    taker, given = torch.zeros_like(experts), torch.zeros_like(experts)  # which expert takes, and which token it gives
    rounding = 1e-12 * preference.abs().max()  # smaller gains are rounding errors, and could lead in a circle
    while True:
        cheapest, gives = (loss + preference).masked_fill(~chosen, math.inf).min(1)  # for each expert
        new, takes = (cheapest[:, None] - preference).masked_fill(chosen, math.inf).min(0)  # for each token
        better = new < loss - rounding
        if not better.any():
            break
        loss = torch.where(better, new, loss)
        taker, given = torch.where(better, takes, taker), torch.where(better, gives[takes], given)
    # The chain's end is the cheapest token with room; from there we follow it back to the crowded one.
    token = loss.masked_fill(experts >= most, math.inf).argmin()
    while experts[token] <= most:
        chosen[taker[token], token] = True
        chosen[taker[token], given[token]] = False
        token = given[token]
