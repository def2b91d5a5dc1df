"""GShard: each token goes to two experts, and to the second one only by chance if it weighs little.

**Idea.** An expert has a fixed number of places per sequence, its capacity. Tokens take them in their order, all first
choices before all second ones; a choice that finds no place is dropped. A second choice of little weight is often not
made, which leaves the place to a token to which it matters more.

**Source.** Lepikhin et al. 2020, "GShard", §2.2 and algorithm 1. Also called top-2 gating.
**Sent.** Nothing.
**Cost.** One product with W_g, [experts, hidden], which every rank holds.
The full form, `minitrain.mixture_of_experts.full.gshard`, adds several sequences at once, random numbers that belong to
tokens and not to ranks, evaluation without chance and capacity, float32 in a bfloat16 model, and checks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_g, [experts, hidden]
    chance: Tensor | None = None,  # [tokens], uniform in [0, 1); None: drawn here
    capacity_factor: float = 1.0,
    loss_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Both experts of each token, [tokens, 2], or −1 for a choice not kept; gates, [tokens, 2]; the auxiliary loss."""
    tokens, experts = len(x), len(weight)
    gates = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    best, expert = gates.topk(2, -1)  # [tokens, 2]
    # The two gates, normalized: g₁/(g₁ + g₂) and g₂/(g₁ + g₂).
    best = best / best.sum(-1, keepdim=True)

    # Line 13: ℓ_aux = 1/E · Σ_e c_e/S · m_e. The count c_e of first choices
    # has no gradient; the mean gate m_e has one.
    c = F.one_hot(expert[:, 0], experts).sum(0).to(gates.dtype)  # [experts]
    m = gates.sum(0) / tokens  # [experts]
    loss = loss_factor * (c / tokens * m).mean(-1)

    # §2.2: the second choice is made with probability 2g₂.
    chance = torch.rand_like(best[:, 1]) if chance is None else chance
    made = torch.stack([torch.ones_like(chance) > 0, 2 * best[:, 1] > chance], 1)
    # All first choices queue before all second ones; one that is not made takes no place.
    queue = F.one_hot(expert, experts) * made[..., None]  # [tokens, 2, experts]
    queue = queue.transpose(0, 1).flatten(0, 1)  # [2 · tokens, experts]
    place = (queue.cumsum(0) * queue).sum(-1)  # from 1; 0 if not made
    place = place.view(2, tokens).T  # [tokens, 2]
    # The 1e-9 makes up for rounding: 1.15 · 100 is 114.999…
    capacity = int(capacity_factor * 2 * tokens / experts + 1e-9)
    kept = made & (place <= capacity)
    return expert.where(kept, -1), best * kept, loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
