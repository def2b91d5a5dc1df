"""Switch: each token goes to one expert, the most probable one.

**Idea.** One expert per token is enough. Its output is multiplied by its probability; otherwise the output would
give the router no gradient, because choosing is not differentiable. A loss spreads the tokens over the experts, and a
capacity bounds the work of each expert.

**Source.** Fedus, Zoph & Shazeer 2021, "Switch Transformers", §2.1 and §2.2. Also called top-1 routing.
**Cost.** One product with W_r, [experts, hidden], which every rank holds.
The full form, `minitrain.mixture_of_experts.full.switch`, adds several sequences at once, jitter, a float32 router in
a bfloat16 model (§2.4), initial weights, evaluation without a capacity, and checks.
`layer.py` is next: it sends the tokens to the experts chosen here; `moe_gpt.py` puts such layers into a GPT.
Its auxiliary loss is also called load-balancing loss.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_r, [experts, hidden]
    capacity_factor: float = 1.25,
    loss_factor: float = 0.01,  # α
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose one expert for each token. With `capacity_factor=experts` no token is ever dropped, as in evaluation.

    Returns:
        The chosen expert, [tokens, 1], −1 if the token is dropped; its gate, [tokens, 1], 0 if the token is dropped;
        the auxiliary loss, [].
    """
    tokens, experts = len(x), len(weight)
    # Equation 1: p_i(x) = exp(h_i) / Σ_j exp(h_j), with h = W_r x.
    probability = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    # Equation 2: the gate is the probability of the chosen expert.
    gate, expert = probability.max(-1)  # [tokens] each
    mask = F.one_hot(expert, experts)  # [tokens, experts]

    # Equations 5 and 6: the fraction of tokens f_i is a count and has no gradient,
    # so the router learns through the mean probability P_i.
    f = mask.sum(0).to(x.dtype) / tokens  # [experts]
    p = probability.sum(0) / tokens  # [experts]
    # Equation 4: α · N · Σ_i f_i · P_i, which is α if all experts are used equally.
    loss = loss_factor * experts * (f * p).sum(-1)

    # Equation 3. 1e-9 because of rounding: in floating point 1.15 · 100 is 114.999…
    capacity = int(capacity_factor * tokens / experts + 1e-9)
    assert capacity >= 1, f"{capacity_factor=} leaves {experts} experts without slots"
    # Each token's position among those that chose the same expert; the first get its slots.
    position = (mask.cumsum(0) * mask).sum(-1)  # [tokens], from 1
    kept = position <= capacity  # [tokens]
    return expert.where(kept, -1)[:, None], (gate * kept)[:, None], loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
