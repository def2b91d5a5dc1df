"""Expert choice: each expert chooses the tokens that suit it best, as many as it has slots.

**Idea.** Turn the choice around. If experts choose tokens, every expert is exactly full, so nothing is dropped and no
loss is needed for balance. A token may get many experts, or none. An expert compares a token with later tokens, too, so
a model with this router cannot generate token by token.

**Source.** Zhou et al. 2022, "Mixture-of-experts with expert choice routing", §3.2.
**Cost.** One product with W_g, [experts, hidden], which every rank holds. An expert chooses among the tokens of one
sequence, so ranks need not ask each other.
The full form, `minitrain.mixture_of_experts.full.expert_choice`, adds several sequences
at once, a float32 router in a bfloat16 model, and checks.
`layer.py` is next: it sends the tokens to the experts chosen here; `moe_gpt.py` puts such layers into a GPT.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_g, [experts, hidden]
    capacity_factor: float = 2.0,  # c, the number of experts that a token gets on average
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the same number of tokens for each expert.

    Returns:
        A column for each expert e, [tokens, experts]: e where it has chosen the token, −1 elsewhere; the gates,
        [tokens, experts], 0 elsewhere; the auxiliary loss, [], which is 0 because every expert has k tokens.
    """
    tokens, experts = len(x), len(weight)
    # k = n · c / e. 1e-9 because of rounding: in floating point 1.15 · 100 is 114.999…
    k = int(capacity_factor * tokens / experts + 1e-9)
    assert 1 <= k <= tokens, "an expert takes at least one token, and each token once"
    # S = softmax(X · W_g), over the experts, as in the other routers.
    s = F.linear(x, weight).softmax(-1)  # [tokens, experts]
    # G, I = TopK(Sᵀ, k): the other routers take the best of each row of S (a token),
    # this one the best of each column (an expert).
    index = s.T.topk(k, -1).indices  # I, [experts, k], numbers of tokens
    # In place of the paper's P = Onehot(I), [experts, k, tokens], a mask without k.
    chosen = torch.zeros_like(s, dtype=torch.bool).scatter(0, index.T, True)  # [tokens, experts]
    expert = torch.arange(experts, device=x.device).expand_as(s)  # [tokens, experts]
    return expert.where(chosen, -1), s * chosen, s.new_zeros(())


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
