"""DiLoCo: hundreds of steps on each rank, and one step of an outer optimizer with what they have changed.

**Idea.** `local_sgd` replaces the parameters by their mean. DiLoCo takes the mean as advice: how far ranks have gone in
H steps, θ − θᵣ, is averaged like a gradient, and an outer optimizer steps with it. Nesterov momentum with a rate of 0.7
makes up for much of what large H lose, so that H = 500 trains a language model about as well as H = 1.

**Source.** Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models", algorithm 1.
**Sent.** One all-reduce of S bytes in H steps.
**Cost.** 2S per rank: the parameters of the last round, and the outer momentum. The inner optimizer, AdamW in the
paper, keeps its states from round to round, and they are never sent. Also called SlowMo (Wang et al. 2020), FedOpt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group
from minitrain.data_parallel.local_sgd import average


def nesterov(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """The paper's outer optimizer."""
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


class DiLoCo(nn.Module):
    """Steps an outer optimizer after every H-th step of the inner one.

    Args:
        module: Its parameters begin with the same values on all ranks.
        every: H.
        make_outer: Makes the outer optimizer of the shared parameters.
        group: The ranks; None means everyone.
    """

    def __init__(
        self, module: nn.Module, every: int, make_outer: Callable[[list[Tensor]], Any] = nesterov, group: Group = None
    ):
        super().__init__()
        assert every >= 1, f"every={every} must be at least 1, the number of inner steps of a round"
        assert not list(module.buffers()), "each rank would keep buffers of its own, which nothing averages"
        self.module, self.every, self.group, self.steps = module, every, group, 0
        # θ, as it was after the last round: the same on all ranks.
        self.shared = [p.detach().clone() for p in module.parameters()]
        self.outer = make_outer(self.shared)

    def forward(self, *inputs):
        return self.module(*inputs)

    @torch.no_grad()
    def after_step(self) -> None:
        """Call it after each step of the inner optimizer, whose gradients are this rank's own."""
        self.steps += 1
        if self.steps % self.every:
            return
        # The outer gradient points backwards, as a gradient does: θ minus it is where this rank has arrived.
        gaps = [shared - mine for shared, mine in zip(self.shared, self.module.parameters(), strict=True)]
        average(gaps, self.group)
        for shared, gap in zip(self.shared, gaps, strict=True):
            shared.grad = gap
        self.outer.step()
        self.outer.zero_grad()  # or S bytes of gaps would be held during the next round
        # The next round begins on every rank with the same parameters.
        for shared, mine in zip(self.shared, self.module.parameters(), strict=True):
            mine.copy_(shared)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
