"""The full form of `minitrain.mixture_of_experts.bias_balanced` adds groups, micro-batches, and a bias kept as state.

**The bias is a state and no parameter**: a buffer that optimizers, weight decay and gradients do not see, the same on
all ranks. Each training forward adds its choices to `load`. After the step, `update` sums the loads of all layers over
the ranks that share the batch in one all-reduce, and changes the biases. So one step counts all its micro-batches. A
forward that is computed again in backward counts once, because recomputation puts buffers back.

**Choices and gates are a token's own**, and there is no loss: neither groups nor other tokens change them.

Open `mixture_of_experts/full/router.py` first.
**Source.** Wang et al. 2024, algorithm 1; DeepSeek-AI 2024, "DeepSeek-V3", §2.1.2, equations 12 to 16. Also called
`noaux_tc`, `e_score_correction_bias`, `routed_scaling_factor` (DeepSeek).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing, counted


class BiasBalanced(Router):
    """Top k of sigmoids, to which a bias of each expert is added only to choose.

    `hidden`, `experts`, `choices` and `layer` are those of `Router`.

    Args:
        speed: u, by which `update` changes a bias.
        scale: The sum of a token's gates; DeepSeek-V3 has 2.5 for 8 of 256 experts.

    Attributes:
        bias: b, `[experts]`.
        load: Tokens that chose each expert on this rank in training, since the last `update`.
    """

    bias: Tensor
    load: Tensor

    def __init__(
        self,
        hidden: int,
        experts: int,
        *,
        choices: int = 2,
        speed: float = 0.001,
        scale: float = 1.0,
        layer: int = 0,
    ):
        super().__init__(hidden, experts, choices=choices, layer=layer)
        self.speed, self.scale = speed, scale
        self.register_buffer("bias", torch.zeros(experts))
        # Of one step only, and therefore in no checkpoint.
        self.register_buffer("load", torch.zeros(experts, dtype=torch.int64), persistent=False)

    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        scores = self.scores(self.split_into_groups(x, groups))
        score = scores.sigmoid()  # [groups, size, experts]
        expert = (score + self.bias).topk(self.choices, -1).indices  # [groups, size, choices]
        # Without the bias, or it would change what experts contribute, and not only who does.
        gates = score.gather(-1, expert)
        # As in DeepSeek-V3's code: in float32 all sigmoids of a token can be 0.
        gates = self.scale * gates / (gates.sum(-1, keepdim=True) + 1e-20)
        routing = self.to_routing(x, expert, gates, scores.new_zeros(len(scores)), scores=scores)
        if self.training:
            self.load += counted(expert.flatten(), self.experts)
        return routing

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.bias
        super()._apply(fn, recurse)
        # In 16 bits a step of 0.001 would soon be rounded off.
        if self.bias.element_size() == 2:
            self.bias = before.to(self.bias.device)
        return self

    @torch.no_grad()
    def reset_bias(self) -> None:
        """Begin with biases of 0."""
        self.bias.zero_()
        self.forget()

    @torch.no_grad()
    def learn(self, load: Int[Tensor, " experts"]) -> None:
        """Change the bias after a step in which each expert had so many tokens of all ranks."""
        # b ← b + u · sign(mean load − load); E times both sides, so that these are whole numbers.
        self.bias += self.speed * (load.sum() - self.experts * load).sign()
        self.forget()

    @torch.no_grad()
    def forget(self) -> None:
        """Count from 0 again, as after a step that is left out."""
        self.load.zero_()


@torch.no_grad()
def update(routers: Sequence[BiasBalanced], comm: Comm) -> None:
    """Change the biases after a step, in the same way on every rank.

    Args:
        routers: Those of this rank's layers, with equally many experts; the same layers on all ranks of `comm`.
        comm: The ranks that share the batch. Tensor-parallel ranks have the same tokens, and are none of them.
    """
    if not routers:
        return
    load = torch.stack([router.load for router in routers])  # [routers, experts]
    # Experts that are busy here may be idle elsewhere. Also, the biases must stay equal on all ranks.
    comm.all_reduce(load).wait()
    for router, of_all in zip(routers, load, strict=True):
        router.learn(of_all)
