"""Expert choice: each expert takes the tokens that suit it best, as many as it has places.

**Idea.** Turn the question round: if experts choose, every expert is full and none overflows, so no loss for balance is
needed. A token may get many experts, or none. The choice looks at later tokens, too, so such a model cannot generate
token by token.

**Source.** Zhou et al. 2022, "Mixture-of-experts with expert choice routing", §3.2.
**Sent.** Nothing: an expert chooses among the tokens of one sequence.
**Cost.** One product with W_g, [experts, hidden], which every rank holds.
The full form, `minitrain.mixture_of_experts.full.expert_choice`, adds a cap on the experts of a token (§3.3), several
sequences at once, a float32 router in a bfloat16 model, and checks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_g, [experts, hidden]
    capacity_factor: float = 2.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Who chose each token: [tokens, experts], −1 where expert e did not; gates, [tokens, experts]; a loss of 0.

    `capacity_factor` is the number of experts that a token gets on average.
    """
    tokens, experts = len(x), len(weight)
    # k = n · c / e. The 1e-9 makes up for rounding: 1.15 · 100 is 114.999…
    k = int(capacity_factor * tokens / experts + 1e-9)
    assert 1 <= k <= tokens, "an expert takes at least one token, and each token once"
    # S = softmax(X · W_g); the softmax is over experts.
    s = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    # G, I = TopK(Sᵀ, k): each expert looks along all tokens.
    index = s.T.topk(k, -1).indices  # I, [experts, k]
    # P = Onehot(I), here with token and expert only.
    chosen = torch.zeros_like(s, dtype=torch.bool).scatter(0, index.T, True)
    expert = torch.arange(experts, device=x.device).expand_as(s)  # [tokens, experts]
    # Every expert has k tokens, so there is nothing to balance.
    return expert.where(chosen, -1), s * chosen, s.new_zeros(())


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
