"""Noisy top-k gating: each token goes to its k best experts, and noise lets other experts win now and then.

**Idea.** Keep each token's k highest logits and take the softmax over these alone. All other experts get weight 0, so
they need not be computed. However, experts that are chosen learn, and are then chosen even more often. Two things work
against this: logits get noise of a learned size, and two losses ask that all experts be used equally, by weight
(importance) and by number of tokens (load).

**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2.1, §4 and appendix A.
**Cost.** Two products, with W_g and W_noise, [experts, hidden] each, which every rank holds. There is no capacity.
Evaluation is without noise. The full form without any, `minitrain.mixture_of_experts.full.top_k`, is what is used
today: the router of Mixtral and Qwen3, balanced by Switch's loss.
`layer.py` is next: it sends the tokens to the experts chosen here; `moe_gpt.py` puts such layers into a GPT.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_g, [experts, hidden]
    noise_weight: Tensor,  # W_noise, [experts, hidden]
    noise: Tensor | None = None,  # ε, [tokens, experts], standard normal; None: drawn here
    choices: int = 2,  # k
    importance_factor: float = 0.1,
    load_factor: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose k experts for each token.

    Returns:
        The chosen experts, [tokens, k], best first; their gates, [tokens, k]; the sum of both losses, [].
    """
    assert 1 <= choices < len(weight), "the load compares with the (k+1)-th best expert"
    # Equation 4: H(x) = x·W_g + ε · softplus(x·W_noise).
    clean_logits = F.linear(x, weight)  # [tokens, experts]
    noise_stddev = F.softplus(F.linear(x, noise_weight))  # [tokens, experts]
    noise = torch.randn_like(clean_logits) if noise is None else noise
    noisy_logits = clean_logits + noise * noise_stddev  # [tokens, experts]
    # One more than k, because the load below needs the runner-up.
    top_logits, top_indices = noisy_logits.topk(choices + 1, -1)  # [tokens, k + 1]
    # Equations 3 and 5: G(x) = softmax(KeepTopK(H(x), k)).
    expert = top_indices[:, :choices]  # [tokens, k]
    gates = top_logits[:, :choices].softmax(-1)  # [tokens, k]

    # §4: an expert's importance is the sum of its gates over all tokens.
    importance = torch.zeros_like(noisy_logits).scatter(-1, expert, gates).sum(0)  # [experts]
    # Appendix A: a count of tokens has no gradient. So each token counts with the probability
    # that it would choose the expert if this expert's noise alone were drawn again. For that,
    # the expert must beat the k-th best of the others: among all experts this is the
    # (k+1)-th best if the expert itself is one of the best k, and the k-th best if not.
    chosen = torch.zeros_like(noisy_logits, dtype=torch.bool).scatter(-1, expert, True)  # [tokens, experts]
    kth, runner_up = top_logits[:, choices - 1, None], top_logits[:, choices, None]  # [tokens, 1] each
    kth_excluding = torch.where(chosen, runner_up, kth)  # [tokens, experts]
    # P(x, i) = Φ(((x·W_g)_i − kth_excluding(H(x), k, i)) / softplus((x·W_noise)_i)).
    load = torch.special.ndtr((clean_logits - kth_excluding) / noise_stddev).sum(0)  # [experts]
    return expert, gates, importance_factor * squared_variation(importance) + load_factor * squared_variation(load)


def squared_variation(values: Tensor) -> Tensor:
    """The squared coefficient of variation, CV² = variance / mean²: 0 if all values are equal."""
    return ((values - values.mean()) ** 2).mean() / values.mean() ** 2


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
