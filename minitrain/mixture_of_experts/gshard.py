"""GShard: each token goes to two experts, and to the second one only by chance if its gate is small.

**Idea.** An expert takes a fixed number of tokens per sequence, its capacity. Tokens take its slots in their order,
all first choices before all second ones, and a choice that finds no slot left is dropped. A second choice with a small
gate is often not made at all, which leaves the slot to a token to which it matters more.

**Source.** Lepikhin et al. 2020, "GShard", §2.2 and algorithm 1. Also called top-2 gating.
**Cost.** One product with W_g, [experts, hidden], which every rank holds.
Mesh TensorFlow calls the second choice `second_expert_policy="random"`. In evaluation there is neither chance nor a
capacity, so that a generated token does not depend on later ones.
`layer.py` is next: it sends the tokens to the experts chosen here; `moe_gpt.py` puts such layers into a GPT.
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
    """Choose two experts for each token.

    Returns:
        The chosen experts, [tokens, 2], −1 for a choice that is not made or dropped; their gates, [tokens, 2], 0 for
        such a choice; the auxiliary loss, [].
    """
    tokens, experts = len(x), len(weight)
    probability = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    gate, expert = probability.topk(2, -1)  # [tokens, 2] each
    # Both gates together are 1: g₁/(g₁ + g₂) and g₂/(g₁ + g₂).
    gate = gate / gate.sum(-1, keepdim=True)

    # Line 13: ℓ_aux = 1/E · Σ_e c_e/S · m_e. The count of first choices c_e
    # has no gradient, so the router learns through the mean probability m_e.
    c = F.one_hot(expert[:, 0], experts).sum(0).to(probability.dtype)  # [experts]
    m = probability.sum(0) / tokens  # [experts]
    loss = loss_factor * (c / tokens * m).mean(-1)

    # §2.2: the second choice is made with probability 2·g₂, the first one always.
    chance = torch.rand_like(gate[:, 1]) if chance is None else chance
    second = 2 * gate[:, 1] > chance  # [tokens]
    made = torch.stack([torch.ones_like(second), second], 1)  # [tokens, 2]
    # Slots are given out in the order of this mask's rows: transposed, so that all first
    # choices come before all second ones. A choice that is not made takes no slot.
    mask = F.one_hot(expert, experts) * made[..., None]  # [tokens, 2, experts]
    mask = mask.transpose(0, 1).flatten(0, 1)  # [2 · tokens, experts]
    position = (mask.cumsum(0) * mask).sum(-1)  # [2 · tokens], from 1; 0 if not made
    position = position.view(2, tokens).T  # [tokens, 2]
    # 1e-9 because of rounding: in floating point 1.15 · 100 is 114.999…
    capacity = int(capacity_factor * 2 * tokens / experts + 1e-9)
    assert capacity >= 1, f"{capacity_factor=} leaves {experts} experts without slots"
    kept = made & (position <= capacity)  # [tokens, 2]
    return expert.where(kept, -1), gate * kept, loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
