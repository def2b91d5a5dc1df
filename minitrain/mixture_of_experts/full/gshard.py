"""The full form of `minitrain.mixture_of_experts.gshard` adds groups, and random numbers per token.

**A later token can take an earlier one's place**: second choices queue after the first choices of all tokens, later
ones among them. In evaluation this router drops nothing, so a generated token does not depend on later ones.

**Cost.** `minitrain.costs.mixture_of_experts`: `capacity`, and `gshard_loss_at_balance`. The base class, in
`mixture_of_experts/full/router.py`, is to be opened first.
Also called `second_expert_policy="random"` in Mesh TensorFlow, where the loss is multiplied by E², so that at balance
it is the factor itself.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.mixture_of_experts.full.router import Router, fractions
from minitrain.mixture_of_experts.full.routing import Routing


class GShard(Router):
    """Top 2 with capacity.

    `hidden`, `experts` and `layer` are those of `Router`.

    Args:
        capacity_factor: An expert has ⌊factor · 2 · tokens/experts⌋ places in each group; None: no limit. In evaluation
            there is none.
        loss_factor: k, of the auxiliary loss.

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
        super().__init__(hidden, experts, choices=2, layer=layer)
        self.capacity_factor, self.loss_factor = capacity_factor, loss_factor

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        scores = self.scores(tokens)
        gates = scores.softmax(-1)  # [groups, size, experts]
        best, expert = gates.topk(2, -1)  # [groups, size, 2]
        # Before chance and capacity, as in the paper: a token that loses one expert keeps the other's share as it is.
        weight = best / best.sum(-1, keepdim=True)  # g₁/(g₁ + g₂), g₂/(g₁ + g₂)

        counted, mean = fractions(expert[..., :1], gates)  # c_e/S, of first choices, and m_e
        losses = self.loss_factor * (counted * mean).mean(-1)  # 1/E · Σ_e c_e/S · m_e

        chosen = torch.ones_like(expert, dtype=torch.bool)
        if self.training:
            chance = self.uniform(tokens, 1, "second")  # one for each token
            # A second choice that is skipped takes no place, as in §2.2 and in Mesh TensorFlow. The second loop of the
            # paper's algorithm 1 contradicts this: it counts every second choice, and so leaves places empty.
            chosen[..., 1:] = 2 * weight[..., 1:] > chance
        capacity = self.capacity(tokens.shape[1], self.capacity_factor if self.training else None)
        return self.to_routing(x, expert, weight, losses, scores=scores, capacity=capacity, chosen=chosen)
