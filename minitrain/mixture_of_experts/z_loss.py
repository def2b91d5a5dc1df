"""Router z-loss: a penalty on large logits, so that the router's softmax stays exact.

**Idea.** A softmax doesn't change if all logits of a token grow by the same number, so nothing keeps them small. But
the larger a logit, the coarser its rounding: between 128 and 256 bfloat16 has whole numbers only, and e^0.5 is 1.65.
The loss is the square of z = log Σ exp(logits), which is 0 if the exponentials sum to 1.

**Source.** Zoph et al. 2022, "ST-MoE: Designing stable and transferable sparse expert models", §3.3, equation 5, with
a factor of 0.001. Also called `moe_z_loss_coeff` (Megatron-LM).
**Cost.** Here one more product with the router's weight; a router that adds it to its own loss has the logits already.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Route = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


def z_loss(logits: Tensor, factor: float = 0.001) -> Tensor:  # [tokens, experts] -> []
    """Equation 5: the mean over tokens of (log Σ_j exp(h_j))², times its factor."""
    # logsumexp takes the largest logit out first; exp(100) would be infinite in float32.
    z = logits.logsumexp(-1)  # [tokens]
    # The gradient by a logit is factor · 2/tokens · z · softmax: large logits are pulled down most.
    return factor * (z**2).mean()


def with_z_loss(route: Route, factor: float = 0.001) -> Route:
    """The same router, with the z-loss added to its auxiliary loss."""

    def route_and_penalize(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Choices and gates are left as they are.
        chosen, gates, loss = route(x, weight)
        return chosen, gates, loss + z_loss(F.linear(x, weight), factor)

    return route_and_penalize


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
