"""The base class of all routers: tokens in, lists of which token goes to which expert out (`routing.py`).

**A routing group is one sequence in every layout**: capacity, choices and auxiliary loss belong to a group, and losses
are averaged over groups, so that ranks with other sequences cannot affect this one.

**Source.** Shazeer et al. 2017, "Outrageously large neural networks", §2; groups: Lepikhin et al. 2020, "GShard", §2.2.
**Waits for the GPU** once: how many routes there are decides how long the lists are.
**Cost.** Every rank holds a copy of the router, `experts · hidden` numbers. Its work is small compared with that of the
experts: `minitrain.costs.mixture_of_experts.router_flops`. Also called gate, or gating network (Shazeer).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.mixture_of_experts.full.routing import Routing, position_in_expert
from minitrain.models import counter_rng


class Router(nn.Module, ABC):
    """Chooses experts for tokens. Subclasses differ only in `route`.

    Args:
        hidden: Width of a token.
        experts: Number of experts to choose from.
        choices: k, experts of each token, where tokens choose.
        layer: Which of a model's routers this is, so that each has noise of its own.

    Attributes:
        gate: W_g, the product that scores experts, `[experts, hidden]`.

    Raises:
        ValueError: A size is below 1, or `choices` is larger than the number of experts.
    """

    def __init__(self, hidden: int, experts: int, *, choices: int = 1, layer: int = 0):
        super().__init__()
        for name, size in (("hidden", hidden), ("experts", experts)):
            if size < 1:
                raise ValueError(f"{name}={size} must be at least 1")
        if not 1 <= choices <= experts:
            raise ValueError(f"choices={choices} must be at least 1 and at most experts={experts}")
        self.hidden, self.experts, self.choices, self.layer = hidden, experts, choices, layer
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw initial weights: normal with deviation 0.02, as in GPT-2."""
        nn.init.normal_(self.gate.weight, std=0.02, generator=generator)

    def set_position(self, seed: int, step: int, first_token: int = 0) -> None:
        """Set the position in training; call it before each forward in which noise is drawn.

        The position is torch's own and not this router's, so that recomputation restores it, and one call serves all
        routers of a model. Call it after anything else that seeds torch's generator.

        Args:
            seed: Any integer, the same on all ranks.
            step: The training step.
            first_token: The number of x's first token among all tokens of the step, over all ranks and micro-batches.
        """
        counter_rng.set_position(seed, step, first_token)

    @abstractmethod
    def route(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        """Choose experts for each token.

        It may raise on one rank only, since each looks at its own tokens. Code that then sends them must ask the others
        first.

        Args:
            x: One routing group after the other, all of the same length. It may be empty.
            groups: The number of groups: the sequences of the batch.

        Raises:
            ValueError: `x` cannot be cut into `groups`; an expert's capacity would be 0; or a score is infinite
                or not a number.
        """

    def forward(self, x: Float[Tensor, "tokens hidden"], *, groups: int = 1) -> Routing:
        """As `route`."""
        return self.route(x, groups=groups)

    def split_into_groups(self, x: Float[Tensor, "tokens hidden"], groups: int) -> Float[Tensor, "groups size hidden"]:
        """x cut into its groups, in float32 at least."""
        tokens, hidden = x.shape
        if hidden != self.hidden:
            raise ValueError(f"x of width {hidden} does not fit hidden={self.hidden}")
        if tokens == 0:
            groups = 0  # a batch without sequences
        elif groups < 1 or tokens % groups:
            raise ValueError(f"groups={groups} cannot share x's {tokens} tokens evenly; use a divisor of {tokens}")
        # A bfloat16 logit has 8 bits, too few to choose by and to take the exponential of: Fedus et al. 2021, §2.4.
        return x.to(torch.promote_types(x.dtype, torch.float32)).reshape(groups, tokens // max(groups, 1), hidden)

    def scores(self, x: Float[Tensor, "groups size hidden"]) -> Float[Tensor, "groups size experts"]:
        """xW in the precision of x, also inside autocast and with weights of low precision."""
        # Autocast would multiply in 16 bits, whatever the dtype of x.
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x, self.gate.weight.to(x.dtype))

    def uniform(
        self, x: Float[Tensor, "groups size hidden"], columns: int, what: str
    ) -> Float[Tensor, "groups size columns"]:
        """Numbers between 0 and 1 for each token, float64, at the position that `set_position` set."""
        key, first_token = counter_rng.position()
        # By number in the whole step, so that ranks and micro-batches draw the noise that one device would draw.
        tokens = first_token + torch.arange(x.shape[0] * x.shape[1], device=x.device)
        return counter_rng.uniform(f"{key}/{self.layer}/{what}", tokens, columns).view(*x.shape[:2], columns)

    def capacity(self, tokens: int, factor: float | None) -> int | None:
        """⌊factor · choices · tokens/experts⌋ places for each expert in a group of `tokens`; None: no limit."""
        if factor is None or tokens == 0:
            return None if factor is None else 0
        # The factor is the decimal fraction that it was written as: 1.15 · 100 is 115, and not a little less.
        places = math.floor(Fraction(factor).limit_denominator(10**6) * self.choices * tokens / self.experts)
        if places < 1:
            raise ValueError(
                f"capacity_factor={factor} leaves experts={self.experts} without slots in a group of {tokens} tokens; "
                f"use at least {self.experts}/{self.choices * tokens}, or longer groups"
            )
        return places

    def to_routing(
        self,
        x: Float[Tensor, "tokens hidden"],
        expert: Int[Tensor, "groups size choices"],
        weight: Float[Tensor, "groups size choices"],
        losses: Float[Tensor, " groups"],
        *,
        scores: Float[Tensor, "groups size columns"] | None = None,
        capacity: int | None = None,
    ) -> Routing:
        """List the choices of each token, highest score first, and drop those that find no place.

        Places are given in the order of tokens, and to all first choices before any second one.

        Args:
            x: The routed tokens.
            expert: The experts that each token chose.
            weight: Their weights.
            losses: The auxiliary loss of each group.
            scores: The scores behind the choice; None: it was made otherwise.
            capacity: Places of an expert in a group; None: no limit.

        Raises:
            ValueError: A score is infinite or not a number.
        """
        position = position_in_expert(expert, torch.ones_like(expert, dtype=torch.bool), self.experts)
        fits = torch.ones_like(expert, dtype=torch.bool) if capacity is None else position < capacity
        lost = ~fits
        # The one read for which the program waits for the GPU: how long the lists are, and whether scores are numbers.
        scores = x.new_zeros(0, 0, 1) if scores is None else scores
        routes, drops, wrong = torch.stack([fits.sum(), lost.sum(), not_finite(scores)]).tolist()
        refuse(wrong, scores)
        # With the sizes known, `nonzero_static` need not wait for the GPU as `nonzero` does.
        kept, dropped = (
            torch.nonzero_static(flags.flatten(), size=size)[:, 0] for flags, size in ((fits, routes), (lost, drops))
        )
        choices = expert.shape[-1]
        return Routing(
            kept // choices,
            expert.flatten()[kept],
            # Chosen in float32, applied in the model's dtype: wider gates would make wider rows.
            weight.flatten()[kept].to(x.dtype),
            position.flatten()[kept],
            torch.stack([dropped // choices, expert.flatten()[dropped]], dim=1),
            losses.sum() / max(len(losses), 1),  # an empty batch has loss 0, not 0/0
            len(x),
            self.experts,
            capacity,
            len(expert),
        )

    def extra_repr(self) -> str:
        return f"{self.hidden}, {self.experts}"


def not_finite(scores: Float[Tensor, "groups size columns"]) -> Int[Tensor, ""]:
    """How many tokens have a score that is infinite or not a number."""
    return (~scores.isfinite().all(-1)).sum()


def refuse(wrong: int, scores: Float[Tensor, "groups size columns"]) -> None:
    """Refuse scores if `wrong` tokens have one that is infinite or not a number."""
    if wrong:
        raise ValueError(
            f"router scores of {wrong} of {scores.shape[:2].numel()} tokens are infinite or not a number, so that "
            "no expert can be chosen; look at the layers before it and at the router's own weights"
        )


def fractions(
    expert: Int[Tensor, "groups size choices"], probability: Float[Tensor, "groups size experts"]
) -> tuple[Float[Tensor, "groups experts"], Float[Tensor, "groups experts"]]:
    """The part of a group's tokens that chose each expert, and the mean of their probabilities for it.

    A part is a count and has no gradient; the mean has one, so a loss uses it as well. Overflowing choices count.
    """
    size = max(expert.shape[1], 1)
    counts = F.one_hot(expert, probability.shape[-1]).sum((1, 2))
    return counts.to(probability.dtype) / size, probability.sum(1) / size
