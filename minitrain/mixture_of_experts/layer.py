"""The mixture-of-experts layer: route, dispatch, compute, combine.

**Idea.** Where a GPT has one feed-forward layer, this one has many, the experts. Each token goes through the few that
the router chooses, and the sum of their outputs, weighted by the gates, is the layer's output. Parameters grow with the
number of experts, and operations only with how many of them a token uses.

**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2, equation 1.
**Sent.** Nothing: this rank holds all experts. `expert_parallel` divides them.
**Cost.** As many small products as there are experts. Also called `MoELayer` in Megatron-LM and DeepSpeed.
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
    """A mixture of experts in the place of a feed-forward layer.

    Args:
        router: From hidden to a score for each expert, without bias.
        experts: Modules, [1, rows, hidden] in and out, as a GPT's feed-forward layer.
        route: Any of the chapter's, called with a sequence and the router's weight.
    """

    def __init__(
        self,
        router: nn.Linear,
        experts: Sequence[nn.Module],
        route: Route = switch.route,
    ):
        super().__init__()
        assert router.out_features == len(experts), "the router scores each expert"
        self.router, self.experts, self.route = router, nn.ModuleList(experts), route

    def forward(self, x: Tensor) -> Tensor:  # [sequences, seq, hidden]
        tokens = x.flatten(0, 1)  # [tokens, hidden]
        experts, gates = self.choose(x)  # [tokens, choices]
        # A token that no expert takes keeps its zeros; the residual carries it on.
        y = torch.zeros_like(tokens)  # [tokens, hidden]
        for number, expert in enumerate(self.experts):
            # Dispatch: this expert's tokens, once for each choice.
            token, choice = (experts == number).nonzero(as_tuple=True)  # [rows]
            output = expert(tokens[None, token])[0]  # [rows, hidden]
            # Combine: y = Σ_i G(x)_i · E_i(x).
            y = y.index_add(0, token, gates[token, choice, None] * output)
        return y.view_as(x)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Experts and gates of all tokens, [tokens, choices]; the loss is kept in `auxiliary_loss`."""
        assert len(x), "there is at least one sequence"
        # Each sequence by itself: what a token gets must not depend on the batch.
        routed = [self.route(sequence, self.router.weight) for sequence in x]
        experts, gates, losses = zip(*routed, strict=True)
        # To be added to the model's loss.
        self.auxiliary_loss = torch.stack(losses).mean()
        return torch.cat(experts), torch.cat(gates)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
