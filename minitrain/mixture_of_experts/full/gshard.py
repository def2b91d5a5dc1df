"""The full form of `minitrain.mixture_of_experts.gshard`, with groups, and chance that belongs to tokens.

**Idea.** An expert works on a buffer of fixed size, so that shapes never change: its capacity. Tokens take places in
their order, all first choices before all second ones, and who finds none gets nothing from that expert. A second
choice that weighs little is often not made at all, which saves places for those to whom it matters.

**Source.** Lepikhin et al. 2020, "GShard: scaling giant models with conditional computation and automatic sharding",
§2.2 and algorithm 1.

**What each rank holds.** W_g, `[experts, hidden]`, on every rank.

**What is sent, when and why.** Nothing: groups are local. Each has capacity and loss of its own, so that no rank needs
to know what another's tokens chose.

**Cost.** `minitrain.costs.mixture_of_experts`: `capacity`, and `gshard_loss_at_balance`.

**A later token can take an earlier one's place**: second choices queue behind the first choices of all tokens, later
ones among them. In evaluation this router drops nothing, so that what is generated does not depend on what follows.

**Where the paper contradicts itself.** The second loop of its algorithm 1 counts every second choice, even one that the
dice skip, so that a place in the expert's buffer stays empty. §2.2 ignores such a choice to save capacity, and in the
code of Mesh TensorFlow it takes no place. We do the same: a second choice that is skipped takes no place.

**Also called.** Top-2 gating; `second_expert_policy="random"` in Mesh TensorFlow, where the loss is multiplied by E²,
so that at balance it is the factor itself.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.mixture_of_experts.full.router import Router, fractions
from minitrain.mixture_of_experts.full.routing import Routing


class GShard(Router):
    """Top 2 with capacity.

    Args:
        hidden: Width of a token.
        experts: Number of experts, at least 2.
        capacity_factor: An expert has ⌊factor · 2 · tokens/experts⌋ places in each group; None: no limit. In evaluation
            there is none.
        loss_factor: k, of the auxiliary loss.
        layer: As for `Router`.

    Raises:
        ValueError: There are fewer than 2 experts.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float | None = 1.0,
        loss_factor: float = 1.0,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, layer=layer)
        if experts < 2:
            raise ValueError(f"experts={experts} is too few for the top 2; use at least 2")
        self.capacity_factor, self.loss_factor = capacity_factor, loss_factor

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        gates = self.scores(tokens).softmax(-1)  # [groups, size, experts]
        best, expert = gates.topk(2, -1)  # [groups, size, 2]
        weight = best / best.sum(-1, keepdim=True)  # g₁/(g₁ + g₂), g₂/(g₁ + g₂)

        counted, mean = fractions(expert[..., 0], gates)  # c_e/S, of first choices, and m_e
        losses = self.loss_factor * (counted * mean).mean(-1)  # 1/E · Σ_e c_e/S · m_e

        chosen = torch.ones_like(expert, dtype=torch.bool)
        if self.training:
            chance = self.uniform(tokens, 1, "second")  # one for each token
            chosen[..., 1:] = 2 * weight[..., 1:] > chance
        capacity = self.capacity(tokens.shape[1], self.capacity_factor if self.training else None, choices=2)
        return self.to_routing(x, expert, weight, losses, capacity=capacity, chosen=chosen)
