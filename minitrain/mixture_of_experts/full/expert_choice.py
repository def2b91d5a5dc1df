"""The full form of `minitrain.mixture_of_experts.expert_choice` adds groups, and a float32 router in a bfloat16 model.

Open `mixture_of_experts/full/router.py` first.
**Source.** Zhou et al. 2022, "Mixture-of-experts with expert choice routing", §3.2.
**Cost.** `minitrain.costs.mixture_of_experts.capacity`: k = ⌊n · c/e⌋ tokens for each expert.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from minitrain.mixture_of_experts.full.router import Router, not_finite, refuse
from minitrain.mixture_of_experts.full.routing import Routing


class ExpertChoice(Router):
    """Each expert's best tokens.

    `hidden`, `experts` and `layer` are those of `Router`.

    Args:
        capacity_factor: c, how many experts a token has on average; each expert takes k = ⌊n · c/e⌋ of a group's n.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float = 2.0,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, layer=layer)
        if capacity_factor > experts:
            raise ValueError(
                f"capacity_factor={capacity_factor} asks each of experts={experts} for more tokens than there are; use "
                f"at most {experts}"
            )
        self.capacity_factor = capacity_factor

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        scores = self.scores(tokens)
        refuse(int(not_finite(scores)), scores)
        s = scores.softmax(-1).transpose(1, 2)  # Sᵀ, [groups, experts, size]: the softmax is over experts
        k = self.capacity(tokens.shape[1], self.capacity_factor) or 0
        index = s.topk(k, -1).indices  # [groups, experts, k], highest score first
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
