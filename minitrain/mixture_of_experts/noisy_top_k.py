"""Noisy top-k gating: each token goes to its k best experts, and noise lets other experts win now and then.

**Idea.** Keep the k best scores and take the softmax over these alone; the other experts get weight 0 and need not be
computed. Experts that are chosen learn, and are chosen more often. Against that, scores get noise of learned size, and
two losses ask that experts be used equally: by weight (importance) and by number of tokens (load).

**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2.1, §4 and appendix A.
**Sent.** Nothing.
**Cost.** Two products, with W_g and W_noise, [experts, hidden] each, which every rank holds. There is no capacity.
The full form, `minitrain.mixture_of_experts.full.noisy_top_k`, adds several sequences at once, noise that belongs to
tokens and not to ranks, evaluation without noise, two levels (appendix B), and checks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def route(
    x: Tensor,  # [tokens, hidden], one sequence
    weight: Tensor,  # W_g, [experts, hidden]
    noise_weight: Tensor,  # W_noise, [experts, hidden]
    noise: Tensor | None = None,  # [tokens, experts], normal; None: drawn here
    choices: int = 2,
    importance_factor: float = 0.1,
    load_factor: float = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k experts of each token, [tokens, k], best first; their gates, [tokens, k]; the sum of both losses."""
    assert choices < len(weight), "the load compares with the (k+1)-th best expert"
    # Equation 4: H(x) = xW_g + ε · softplus(xW_noise).
    clean = F.linear(x, weight)  # [tokens, experts]
    deviation = F.softplus(F.linear(x, noise_weight))  # [tokens, experts]
    noise = torch.randn_like(clean) if noise is None else noise
    noisy = clean + noise * deviation  # [tokens, experts]
    # Equations 3 and 5: G(x) = softmax(KeepTopK(H(x), k)).
    best, number = noisy.topk(choices + 1, -1)  # [tokens, k + 1]
    expert = number[:, :choices]  # [tokens, k]
    gates = best[:, :choices].softmax(-1)  # [tokens, k]

    # §4: importance is the sum of each expert's gates over all tokens.
    importance = torch.zeros_like(noisy).scatter(-1, expert, gates).sum(0)  # [experts]
    # Appendix A: the number of tokens has no gradient, so count each token's chance to
    # be kept if this expert's noise were drawn anew. Without the expert, the k-th best
    # score is the (k+1)-th of all if the expert is kept, and the k-th if it is not.
    kept = torch.zeros_like(noisy, dtype=torch.bool).scatter(-1, expert, True)
    kth_excluding = torch.where(kept, best[:, choices:], best[:, choices - 1 : choices])
    # P(x, i) = Φ((xW_g)_i − kth_excluding(H(x), k, i)) / softplus((xW_noise)_i)).
    load = torch.special.ndtr((clean - kth_excluding) / deviation).sum(0)  # [experts]
    loss = importance_factor * squared_variation(importance)
    return expert, gates, loss + load_factor * squared_variation(load)


def squared_variation(values: Tensor) -> Tensor:
    """CV², the variance over the square of the mean: 0 if all are equal."""
    return ((values - values.mean()) ** 2).mean() / values.mean() ** 2


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
