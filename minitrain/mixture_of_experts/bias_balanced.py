"""Bias-balanced routing: a bias per expert evens out the load, so that no loss has to.

**Idea.** An auxiliary loss balances by its gradient, which also disturbs what the router learns. Here each expert has a
bias that is added to its score only to choose. After each step the bias of an expert with more tokens than the mean
falls a little, and that of the others rises. The gates come from the scores without the bias, so no gradient sees it.

**Source.** Wang et al. 2024, "Auxiliary-loss-free load balancing strategy for mixture-of-experts", algorithm 1;
DeepSeek-AI 2024, "DeepSeek-V3", §2.1.2, equations 13 to 16. Also called loss-free balancing;
`moe_router_enable_expert_bias` in Megatron-LM.
**Sent.** One all-reduce of 8E bytes per layer and step: the load is that of the tokens of all ranks.
**Cost.** One product with W_g, [experts, hidden], and E biases, which every rank holds. There is no capacity.
The full form, `minitrain.mixture_of_experts.full.bias_balanced`, keeps the bias as a state of the training, adds up the
load of micro-batches, and sends one message for all layers. The bias is also called expert bias.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce


def route(
    x: Tensor,  # [tokens, hidden]
    weight: Tensor,  # W_g, [experts, hidden]
    bias: Tensor,  # b, [experts], zeros before the first step
    choices: int = 2,  # k
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose k experts for each token.

    Returns:
        The chosen experts, [tokens, k]; their gates, [tokens, k], which sum to 1; the auxiliary loss, [], which is 0.
    """
    assert 1 <= choices <= len(weight), "a token chooses each expert once at most"
    # Equation 15: s = σ(x · W_g). Unlike a softmax, one expert's score leaves the others' alone.
    score = F.linear(x, weight).sigmoid()  # [tokens, experts]
    # Equation 16: the k highest s + b are chosen …
    expert = (score + bias).topk(choices, -1).indices  # [tokens, k]
    # … but equation 13's gate is s over the sum of the chosen s, without the bias.
    gates = score.gather(-1, expert)  # [tokens, k]
    gates = gates / gates.sum(-1, keepdim=True)
    return expert, gates, x.new_zeros(())


@torch.no_grad()
def update(
    bias: Tensor,  # b, [experts], changed in place
    expert: Tensor,  # [tokens, k], this rank's choices of the whole step
    speed: float = 0.001,  # u
    group: Group = None,
) -> Tensor:
    """Change the bias after a step, in the same way on every rank. Returns the load of all ranks, [experts]."""
    experts = len(bias)
    load = torch.bincount(expert.flatten(), minlength=experts)  # [experts]
    # Experts that are busy here may be idle elsewhere. Also, the biases must stay equal on all ranks.
    all_reduce(load, group).wait()
    # b ← b + u · sign(mean load − load); E times both sides, so that these are whole numbers.
    bias += speed * (load.sum() - experts * load).sign()
    return load


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
