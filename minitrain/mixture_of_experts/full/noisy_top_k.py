"""The full form of `minitrain.mixture_of_experts.noisy_top_k` adds groups, and noise per token.

Open `mixture_of_experts/full/router.py` first.
**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2.1 (H, G), §4 (importance), appendix A (load).
**Cost.** `minitrain.costs.mixture_of_experts.router_flops`, twice in training. There is no capacity: an expert takes
all tokens that choose it, so the size of buffers changes from step to step.
Without noise it chooses as `minitrain.mixture_of_experts.full.top_k`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing
from minitrain.models.counter_rng import normal


class NoisyTopK(Router):
    """Top k of noisy scores; noise is off in evaluation.

    `hidden`, `experts`, `choices` and `layer` are those of `Router`.

    Args:
        importance_factor: w of the loss on sums of weights.
        load_factor: w of the loss on numbers of tokens.

    Attributes:
        noise_gate: W_noise, the product that gives the size of each score's noise.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        choices: int = 2,
        importance_factor: float = 0.1,
        load_factor: float = 0.1,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, choices=choices, layer=layer)
        self.importance_factor, self.load_factor = importance_factor, load_factor
        self.noise_gate = nn.Linear(hidden, experts, bias=False)
        # Again: when the base class did it, the noise gate did not exist.
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Set all weights to zero."""
        # So noise alone decides at first, and load is even (appendix A).
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        clean = self.scores(tokens)  # xW_g, [groups, size, experts]
        noisy, deviation = self.noisy(clean, tokens)
        kept, expert = noisy.topk(self.choices, -1)  # [groups, size, choices]
        weight = kept.softmax(-1)  # over the kept ones; −∞ for the rest, as the paper writes it, is equivalent
        importance = torch.zeros_like(noisy).scatter(-1, expert, weight).sum(1)  # [groups, experts]
        load = chances(clean, noisy, deviation, self.choices).sum(1)
        losses = self.importance_factor * squared_variation(importance) + self.load_factor * squared_variation(load)
        return self.to_routing(x, expert, weight, losses, scores=noisy)

    def noisy(
        self, clean: Float[Tensor, "groups size experts"], tokens: Float[Tensor, "groups size hidden"]
    ) -> tuple[Float[Tensor, "groups size experts"], Float[Tensor, "groups size experts"] | None]:
        """H = xW_g + ε · softplus(xW_noise), and softplus(xW_noise); in evaluation xW_g and None."""
        if not self.training:
            return clean, None
        deviation = F.softplus(self.scores(tokens, self.noise_gate))
        epsilon = normal(self.uniform(tokens, self.experts, "scores")).to(clean.dtype)
        return clean + epsilon * deviation, deviation


def chances(
    clean: Float[Tensor, "*tokens experts"],
    noisy: Float[Tensor, "*tokens experts"],
    deviation: Float[Tensor, "*tokens experts"] | None,
    choices: int,
) -> Float[Tensor, "*tokens experts"]:
    """The probability of each expert to be among the k best if its own noise were drawn again: P(x, i) of appendix A.

    Their sum over tokens is the load, but smooth: a number of tokens has no gradient, a sum of chances has one.

        P(x, i) = Φ((xW_g)_i − kth_excluding(H, k, i)) / softplus((xW_noise)_i))

    `clean` is xW_g, `noisy` H, and `deviation` softplus(xW_noise); None: no noise, where the chance is 1 or 0.
    """
    experts = clean.shape[-1]
    if choices == experts:
        return torch.ones_like(clean)  # there is no k-th best among k − 1 others: all are always in
    best, expert = noisy.topk(choices + 1, -1)
    # By number, because more than k scores may be as large as the k-th.
    kept = torch.zeros_like(noisy, dtype=torch.bool).scatter(-1, expert[..., :choices], True)
    if deviation is None:
        return kept.to(clean.dtype)
    # Without i, the k-th best is the (k+1)-th of all if i is among the k best, and the k-th of all otherwise.
    kth_excluding = torch.where(kept, best[..., choices:], best[..., choices - 1 : choices])
    return torch.special.ndtr((clean - kth_excluding) / deviation)


def squared_variation(x: Float[Tensor, "groups experts"]) -> Float[Tensor, " groups"]:
    """CV², the variance of a group's values over the square of their mean: 0 if all are equal, E − 1 if one has all.

    The variance is that of the population: divided by E, not E − 1.
    """
    mean = x.mean(-1, keepdim=True)
    return ((x - mean) ** 2).mean(-1) / mean.squeeze(-1) ** 2
