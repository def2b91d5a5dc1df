"""Shared experts: a few experts that every token goes through, next to those that the router chooses.

**Idea.** What all tokens need, such as common grammar, every expert would have to learn again. Experts that are always
used learn it once, and leave the others free to specialize. To pay for them, a token chooses fewer of the others;
experts are also cut finer, m times as many of 1/m of the width, so that a token can combine more of them.

**Source.** Dai et al. 2024, "DeepSeekMoE", §3.1 and §3.2, equations 9 to 11. Also called `n_shared_experts`
(DeepSeek), `moe_shared_expert_intermediate_size` (Megatron-LM).
**Sent.** Nothing: as the router's, their parameters are on every rank. With expert parallelism they can compute while
tokens travel to the others.
**Cost.** Parameters and operations of the shared experts, for every token.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from minitrain.mixture_of_experts.layer import MoELayer


class SharedExperts(nn.Module):
    """A mixture of experts with some more experts that take every token.

    Args:
        routed: The mixture, [sequences, seq, hidden] in and out.
        shared: Feed-forward layers with the same input and output.

    Attributes:
        auxiliary_loss: The mixture's, of the last forward. Shared experts need no balance.
    """

    def __init__(self, routed: MoELayer, shared: Sequence[nn.Module]):
        super().__init__()
        assert len(shared), "without a shared expert this is the mixture alone"
        self.routed, self.shared = routed, nn.ModuleList(shared)

    def forward(self, x: Tensor) -> Tensor:  # [sequences, seq, hidden]
        # Equation 9: Σ over the chosen of g_i · FFN_i(x). A token that was dropped gets 0 here …
        y = self.routed(x)
        # … but still goes through the shared experts. They have no gate: it would always be 1.
        for expert in self.shared:
            y = y + expert(x)
        return y

    @property
    def auxiliary_loss(self) -> Tensor:
        return self.routed.auxiliary_loss


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
