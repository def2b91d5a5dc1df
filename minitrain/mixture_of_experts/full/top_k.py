"""Top k of a softmax without noise and without a capacity, balanced by Switch's loss: the router of Mixtral and Qwen3.

It chooses as `minitrain.mixture_of_experts.noisy_top_k` does without noise, and nothing is dropped. Its loss counts all
k choices of a token, and keeps logits small as well (`minitrain.mixture_of_experts.z_loss`).

**The loss is that of a sequence**, as of all routers here, so that ranks and micro-batches do not change it. Mixtral's
is over the micro-batch at hand, and Qwen3's over the batch of all ranks; both let one sequence prefer some experts.

Open `mixture_of_experts/full/router.py` first.
**Source.** Jiang et al. 2024, "Mixtral of experts", §2.1; Fedus, Zoph & Shazeer 2021, "Switch Transformers", §2.2, for
the loss; Zoph et al. 2022, "ST-MoE", §3.3, for that on logits.
Also called `num_experts_per_tok` (choices), `norm_topk_prob`, `router_aux_loss_coef` (Hugging Face).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from minitrain.mixture_of_experts.full.router import Router, fractions
from minitrain.mixture_of_experts.full.routing import Routing
from minitrain.mixture_of_experts.z_loss import z_loss


class TopK(Router):
    """The k most probable experts.

    `hidden`, `experts`, `choices` and `layer` are those of `Router`.

    Args:
        loss_factor: Of the balancing loss, which is k times this factor at balance.
        z_factor: Of the loss on logits.
        normalize: Divide the weights of a token's choices by their sum. Otherwise they are probabilities, as in Switch.
    """

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        choices: int = 2,
        loss_factor: float = 0.01,
        z_factor: float = 0.001,
        normalize: bool = True,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, choices=choices, layer=layer)
        self.loss_factor, self.z_factor, self.normalize = loss_factor, z_factor, normalize

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        tokens = self.split_into_groups(x, groups)
        scores = self.scores(tokens)
        probability = scores.softmax(-1)  # [groups, size, experts]
        weight, expert = probability.topk(self.choices, -1)  # [groups, size, choices]
        if self.normalize:
            weight = weight / weight.sum(-1, keepdim=True)
        f, p = fractions(expert, probability)  # f sums to k
        losses = self.loss_factor * self.experts * (f * p).sum(-1)  # α · E · Σ_i f_i · P_i
        # The mean over all tokens is that of the groups' means: they are of equal length.
        losses = losses + z_loss(scores, self.z_factor)
        return self.to_routing(x, expert, weight, losses, scores=scores)
