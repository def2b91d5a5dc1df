"""The full form of `minitrain.mixture_of_experts.switch` adds groups, jitter, and float32 in low precision.

**The router computes in float32 inside a bfloat16 model.** A logit of 8 bits is wrong by up to 1/512 of itself, which
would send some tokens to other experts. The router's output is bfloat16 again, so that no wider tensors are sent.

`mixture_of_experts/full/routing.py` and `mixture_of_experts/full/router.py` come first; this file has the choice only.
**Source.** Fedus, Zoph & Shazeer 2021, "Switch Transformers", §2.4 (precision, initial weights).
**Cost.** `minitrain.costs.mixture_of_experts`: `capacity`, `dropped_fraction`, `switch_loss_at_balance`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.router import Router, fractions
from minitrain.mixture_of_experts.full.routing import Routing

INITIAL_SCALE = 0.1
"""s of the initial weights, a tenth of what is usual: large logits at the start make training unstable (§2.4)."""


class Switch(Router):
    """Top 1 with capacity.

    Args:
        hidden: Width of a token.
        experts: Number of experts.
        capacity_factor: An expert has ⌊factor · tokens/experts⌋ places in each group; None: no limit. In evaluation
            there is none, so that nothing is dropped.
        loss_factor: α, of the auxiliary loss.
        jitter: In training the router sees x times numbers between 1 − jitter and 1 + jitter; the paper takes 0.01. 0:
            no noise.
        layer: As for `Router`.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        capacity_factor: float | None = 1.25,
        loss_factor: float = 0.01,
        jitter: float = 0.0,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, layer=layer)
        self.capacity_factor, self.loss_factor, self.jitter = capacity_factor, loss_factor, jitter

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial weights: normal with deviation √(s/hidden), s = 0.1, none beyond two deviations."""
        deviation = math.sqrt(INITIAL_SCALE / self.hidden)
        nn.init.trunc_normal_(self.gate.weight, std=deviation, a=-2 * deviation, b=2 * deviation, generator=generator)

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        if self.jitter and self.training:
            chance = self.uniform(tokens, self.hidden, "jitter").to(tokens.dtype)
            # The router alone sees the jitter: experts get x as it is.
            tokens = tokens * (1 + self.jitter * (2 * chance - 1))
        scores = self.scores(tokens)
        probability = scores.softmax(-1)  # [groups, size, experts]
        # The weight is the probability and not 1, because only through it does the router get a gradient.
        weight, expert = probability.max(-1, keepdim=True)  # [groups, size, 1]

        f, p = fractions(expert, probability)
        losses = self.loss_factor * self.experts * (f * p).sum(-1)  # α · E · Σ_i f_i · P_i
        capacity = self.capacity(tokens.shape[1], self.capacity_factor if self.training else None)
        return self.to_routing(x, expert, weight, losses, scores=scores, capacity=capacity)
