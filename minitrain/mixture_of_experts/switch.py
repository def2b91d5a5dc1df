"""Switch: each token goes to one expert, the most probable one.

**Idea.** One expert per token is enough. It is weighted with its probability, through which the router learns although
there is nothing to weigh the expert against. A loss keeps tokens spread, and a capacity bounds each expert's work.

**Source.** Fedus, Zoph & Shazeer 2021, "Switch Transformers", §2.1 and §2.2. Also called top-1 routing.
**Sent.** Nothing.
**Cost.** One product with W_r, [experts, hidden], which every rank holds.
The full form, `minitrain.mixture_of_experts.full.switch`, adds several sequences at once, jitter, a float32 router in
a bfloat16 model (§2.4), initial weights, evaluation without a capacity, and checks.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_r, [experts, hidden]
    capacity_factor: float = 1.25,
    loss_factor: float = 0.01,
) -> tuple[Tensor, Tensor, Tensor]:
    """The expert of each token, [tokens, 1], or −1 if the token is dropped; its gate, [tokens, 1]; the auxiliary loss.

    With `capacity_factor=experts` nothing is ever dropped, as in evaluation.
    """
    tokens, experts = len(x), len(weight)
    # Equation 1: p_i(x) = exp(h_i) / Σ_j exp(h_j), with h = W_r x.
    probability = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    # Equation 2: the gate is the probability of the chosen expert.
    gate, expert = probability.max(-1)  # [tokens], [tokens]
    chosen = F.one_hot(expert, experts)  # [tokens, experts]

    # Equations 5 and 6: f_i is a count and has no gradient; P_i has one.
    f = chosen.sum(0).to(x.dtype) / tokens  # [experts]
    p = probability.sum(0) / tokens  # [experts]
    # Equation 4: α · N · Σ_i f_i · P_i, smallest if all experts are used alike.
    loss = loss_factor * experts * (f * p).sum(-1)

    # Equation 3. The 1e-9 makes up for rounding: 1.15 · 100 is 114.999…
    capacity = int(capacity_factor * tokens / experts + 1e-9)
    # Tokens take places in their order; how many have come for the same expert so far?
    place = (chosen.cumsum(0) * chosen).sum(-1)  # [tokens], from 1
    kept = place <= capacity
    return expert.where(kept, -1)[:, None], (gate * kept)[:, None], loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
