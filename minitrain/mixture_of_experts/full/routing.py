"""The answer of a router: four lists of equal length (token, expert, weight, position in the expert).

Layers dispatch tokens by these lists regardless of how they were made, so that routers can be exchanged.

**Source.** Groups and positions: Lepikhin et al. 2020, "GShard", §2.2 and algorithm 1. Also called
`combine_weights` and `dispatch_mask` in code that keeps a `[tokens, experts, capacity]` tensor with the same content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Routing:
    """Which token goes to which expert: four lists of equal length, and the dropped rest.

    The lists are in the order of tokens; for one token in the order of its choices, or of experts where these choose.

    Attributes:
        token: The token's number in x.
        expert: The expert's number.
        weight: The factor of the expert's output; differentiable, in the dtype of x.
        position_in_expert: The place that it takes in its expert *in its group*, from 0 without gaps, below `capacity`.
        dropped: Pairs (token, expert) that were chosen and found no place, in the order of tokens.
        auxiliary_loss: The term to add to the loss, its factor included: the mean over this rank's groups. A rank with
            more groups than others must be weighted more.
        tokens: Tokens in x.
        experts: Number of experts.
        capacity: Places of each expert in each group; None: as many as it takes.
        groups: Routing groups in x, equal in size; 0 where x is empty.
    """

    token: Int[Tensor, " routes"]
    expert: Int[Tensor, " routes"]
    weight: Float[Tensor, " routes"]
    position_in_expert: Int[Tensor, " routes"]
    dropped: Int[Tensor, "dropped 2"]
    auxiliary_loss: Float[Tensor, ""]
    tokens: int
    experts: int
    capacity: int | None
    groups: int

    def detached(self) -> Routing:
        """The same without autograd's graph."""
        return replace(self, weight=self.weight.detach(), auxiliary_loss=self.auxiliary_loss.detach())

    def load(self) -> Int[Tensor, " experts"]:
        """Tokens that each expert gets."""
        return counted(self.expert, self.experts)

    def demand(self) -> Int[Tensor, " experts"]:
        """Tokens that chose each expert, including those that found no place."""
        return self.load() + counted(self.dropped[:, 1], self.experts)

    def experts_per_token(self) -> Int[Tensor, " tokens"]:
        """How many experts each token goes to; the residual alone carries one that goes to none."""
        return counted(self.token, self.tokens)

    def group(self) -> Int[Tensor, " routes"]:
        """The routing group of each entry."""
        # 1 where x is empty, as nothing may be divided by 0.
        return self.token // max(self.tokens // max(self.groups, 1), 1)


def counted(numbers: Int[Tensor, " n"], size: int) -> Int[Tensor, " size"]:
    """How often each number below `size` occurs. Unlike `torch.bincount`, it does not wait for a GPU."""
    return numbers.new_zeros(size).scatter_add(0, numbers, torch.ones_like(numbers))


def position_in_expert(
    expert: Int[Tensor, "groups size choices"], chosen: Bool[Tensor, "groups size choices"], experts: int
) -> Int[Tensor, "groups size choices"]:
    """How many choices of the same expert in the same group come before each; choices that do not count use no place.

    Source: Lepikhin et al. 2020, algorithm 1: c_e counts through all first choices, then through the second ones.
    Its second loop also counts those that the dice skip. We do not, as in §2.2 and in Mesh TensorFlow: it would leave
    places empty.
    """
    groups, size, choices = expert.shape
    taken = F.one_hot(expert, experts) * chosen[..., None]  # [groups, size, choices, experts]
    # Choices before tokens, so that the first choices of all tokens come before any second one.
    queue = taken.transpose(1, 2).reshape(groups, choices * size, experts)
    # Without the choice itself, so that an expert's first place is 0.
    before = queue.cumsum(1) - queue
    before = before.view(groups, choices, size, experts).transpose(1, 2)
    return before.gather(-1, expert[..., None]).squeeze(-1)
