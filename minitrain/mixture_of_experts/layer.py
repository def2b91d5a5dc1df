"""The mixture-of-experts layer: route, dispatch, compute, combine.

**Idea.** Where a GPT block has one feed-forward layer, this layer has many, the experts. Each token goes only through
the few experts that the router chooses. The output is the sum of their outputs, weighted by the gates. So the number of
parameters grows with the number of experts, but the operations per token only with the number of experts it uses.

**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2, equation 1. Also called `MoELayer`
(Megatron-LM) and `MOELayer` (DeepSpeed).
**Cost.** One small product per expert and matrix, in place of one large product per matrix. This rank holds all
experts; `expert_parallel` divides them over ranks.
The full form, `minitrain.mixture_of_experts.full.layer`, adds grouped and padded products in place of the loop, an
auxiliary loss that reaches the router without being returned (for recomputation and pipelines), and checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from minitrain.mixture_of_experts import switch

Route = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class MoELayer(nn.Module):
    """A mixture of experts that takes the place of a feed-forward layer.

    Args:
        router: A linear layer without bias, from hidden to one logit per expert. Only its weight is used.
        experts: Feed-forward layers, [1, rows, hidden] in and out.
        route: `route` of any router of this chapter; set its other arguments with `functools.partial`.

    Attributes:
        auxiliary_loss: Of the last forward, [], to be added to the model's loss.
    """

    def __init__(
        self,
        router: nn.Linear,
        experts: Sequence[nn.Module],
        route: Route = switch.route,
    ):
        super().__init__()
        assert router.out_features == len(experts) and router.bias is None, (
            "the router scores each expert, without bias"
        )
        self.router, self.experts, self.route = router, nn.ModuleList(experts), route

    def forward(self, x: Tensor) -> Tensor:  # [sequences, seq, hidden]
        tokens = x.flatten(0, 1)  # [tokens, hidden]
        # Route: −1 in `chosen` is a choice that was dropped.
        chosen, gates = self.choose(x)  # [tokens, choices] each
        # A token that no expert takes keeps these zeros; the residual connection carries it on.
        y = torch.zeros_like(tokens)  # [tokens, hidden]
        for index, expert in enumerate(self.experts):
            # Dispatch: the rows of all tokens that chose this expert.
            token, choice = (chosen == index).nonzero(as_tuple=True)  # [rows] each
            output = expert(tokens[token][None])[0]  # [rows, hidden]
            # Combine: y = Σ_i G(x)_i · E_i(x).
            y = y.index_add(0, token, gates[token, choice, None] * output)
        return y.view_as(x)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Route all sequences; returns the chosen experts and their gates, [tokens, choices] each."""
        assert len(x), "there is at least one sequence"
        # Each sequence by itself: which tokens get an expert's places must not depend on the
        # other sequences of the batch.
        routed = [self.route(sequence, self.router.weight) for sequence in x]
        chosen, gates, losses = zip(*routed, strict=True)
        self.auxiliary_loss = torch.stack(losses).mean()
        return torch.cat(chosen), torch.cat(gates)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
