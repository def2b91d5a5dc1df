"""The full form of `minitrain.mixture_of_experts.layer` adds grouped and padded products, and a loss that rides along.

Open `mixture_of_experts/full/routing.py` first, a router such as `mixture_of_experts/full/switch.py`, then this file.
**Source.** Besides Shazeer et al. 2017: Lepikhin et al. 2020, "GShard", §2.2, for dropped tokens.
**Cost.** `minitrain.costs.mixture_of_experts.router_flops` and `expert_flops`. Rows go through their experts in one of
three ways with equal results: `mixture_of_experts/full/compute.py`, to be opened last.
Also called `SwitchTransformersSparseMLP`, `MixtralSparseMoeBlock` (Hugging Face).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minitrain.comm.comm import Comm
from minitrain.mixture_of_experts.full.compute import WAYS, Way, check_stackable, lay_side_by_side
from minitrain.mixture_of_experts.full.router import Router
from minitrain.mixture_of_experts.full.routing import Routing
from minitrain.sequence_parallel.full.mappings import gather_from_sequence, reduce_scatter_to_sequence
from minitrain.tensor_parallel.full.mappings import copy_to_parallel, reduce_from_parallel


class MoELayer(nn.Module):
    """A mixture of experts in place of a feed-forward layer: `[…, seq, hidden]` in and out.

    A token that finds no place in any expert gets zeros, so that in a `Block` the residual alone carries it on.

    Args:
        router: Chooses the experts of each token.
        experts: As many modules as the router chooses from, each `[batch, seq, hidden]` in and out.
        compute: "loop" takes any modules; "grouped" and "padded" take `models.gpt.MLP`, and are faster where there
            are many experts.
        riding_loss: None: `auxiliary_loss` is for the caller to add. A number: backward through this layer's output
            also goes through the auxiliary loss, times this number. Where a layer is recomputed in backward, or is not
            on the loss's pipeline stage, this is the only way.
        shared: An expert that all tokens go through, without a gate (Dai et al. 2024, §3.2), in addition to the chosen.

    Attributes:
        routing: The choices of the router in the last forward; its `load()` is for plots. It has no graph if the loss
            rides along.
        tensor: The ranks that share each expert, if `minitrain.mixture_of_experts.full.tensor_parallel` has cut them.
        sequence: Whether x and the output have only this rank's tokens of each sequence.

    Raises:
        ValueError: The number of experts is not the router's; `compute` is unknown, or does not work with these
            experts.

    Examples:
        >>> from minitrain.mixture_of_experts import MoELayer, Switch
        >>> layer = MoELayer(Switch(64, experts=4), [nn.Linear(64, 64) for _ in range(4)])
        >>> y = layer(torch.randn(2, 16, 64))
        >>> loss = y.square().mean() + layer.auxiliary_loss
    """

    def __init__(
        self,
        router: Router,
        experts: Sequence[nn.Module],
        compute: Way = "loop",
        riding_loss: float | None = None,
        shared: nn.Module | None = None,
    ):
        super().__init__()
        if len(experts) != router.experts:
            raise ValueError(f"experts={len(experts)} modules do not match a router that chooses from {router.experts}")
        if compute not in WAYS:
            raise ValueError(f"compute={compute!r} is unknown; use one of {tuple(WAYS)}")
        self.router, self.compute, self.riding_loss = router, compute, riding_loss
        # By number, so that a parameter has one name, whichever rank holds it.
        self.experts = nn.ModuleDict({str(number): expert for number, expert in enumerate(experts)})
        self.shared = shared
        self.routing: Routing | None = None
        self.tensor: Comm | None = None
        self.sequence = False
        self.prepare()

    def forward(self, x: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*batch hidden"]:
        """Each sequence is a routing group of its own; an x without a batch dimension is one group."""
        if self.sequence:
            x = gather_from_sequence(x, self.tensor)  # a router sees whole sequences, as on one device
        tokens = x.reshape(-1, x.shape[-1])
        self.routing = routing = self.route(self._for_router(tokens), math.prod(x.shape[:-2]))
        if self.tensor is not None and not self.sequence:
            tokens = copy_to_parallel(tokens, self.tensor)  # backward adds up what the ranks' hidden units ask for
        rows = self.compute_experts(self.dispatch(tokens, routing), routing)
        y = self.combine(rows, routing)
        if self.shared is not None:
            y = y + self.shared(tokens)  # before the sum over tensor-parallel ranks, which then serves both
        y = self._completed(y.view(x.shape))
        if self.riding_loss is None:
            return y
        self.routing = routing.detached()  # its loss is not added, and the graph need not wait for that
        return _Ride.apply(y, routing.auxiliary_loss, self.riding_loss)

    def route(self, tokens: Float[Tensor, "tokens hidden"], groups: int) -> Routing:
        """The router's choices for these tokens, which are `groups` sequences."""
        return self.router(tokens, groups=groups)

    def dispatch(self, tokens: Float[Tensor, "tokens hidden"], routing: Routing) -> Float[Tensor, "routes hidden"]:
        """A row for each route: a token once for each of its experts, and no row for what was dropped."""
        return tokens.index_select(0, routing.token)

    def compute_experts(self, rows: Float[Tensor, "routes hidden"], routing: Routing) -> Float[Tensor, "routes hidden"]:
        """Each row through its expert."""
        return WAYS[self.compute](list(self.experts.values()), rows, routing.expert)

    def combine(self, rows: Float[Tensor, "routes hidden"], routing: Routing) -> Float[Tensor, "tokens hidden"]:
        """The weighted sum of each token's rows; zeros for a token that has none."""
        # Each rank sees its hidden units' part of a gate's gradient, and backward adds these parts up.
        gates = routing.weight if self.tensor is None else copy_to_parallel(routing.weight, self.tensor)
        weighted = rows * gates[:, None].to(rows.dtype)
        return weighted.new_zeros(routing.tokens, rows.shape[1]).index_add(0, routing.token, weighted)

    def _for_router(self, tokens: Float[Tensor, "tokens hidden"]) -> Float[Tensor, "tokens hidden"]:
        """The same tokens, for the router."""
        # Every rank finds the router's whole gradient, and backward of the gather would add it up over the ranks.
        return _Divided.apply(tokens, self.tensor.ranks) if self.sequence and self.tensor is not None else tokens

    def _completed(self, y: Float[Tensor, "*batch hidden"]) -> Float[Tensor, "*own hidden"]:
        """Of experts that are cut, y is this rank's partial sum: one sum over the ranks for all of them."""
        if self.tensor is None:
            return y
        return reduce_scatter_to_sequence(y, self.tensor) if self.sequence else reduce_from_parallel(y, self.tensor)

    @property
    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """The auxiliary loss of the last forward, its factor included.

        Raises:
            RuntimeError: There was none.
        """
        if self.routing is None:
            raise RuntimeError("auxiliary_loss is that of the last forward, and there was none yet")
        return self.routing.auxiliary_loss

    def extra_repr(self) -> str:
        return f"compute={self.compute!r}"

    def prepare(self) -> None:
        """Check the experts and lay their weights side by side, after they have been exchanged."""
        if self.compute != "loop":
            experts = list(self.experts.values())
            check_stackable(experts, self.compute)
            lay_side_by_side(experts)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.prepare()  # another device or dtype means another storage
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "routing": None}  # it holds a graph, which cannot be copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.prepare()  # parameters were copied one by one


class _Divided(torch.autograd.Function):
    """x as it is; backward divides its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: int) -> Tensor:
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.by, None


class _Ride(torch.autograd.Function):
    """y as it is; backward gives `scale` to the loss that rides along."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.scale = scale
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (loss,) = ctx.saved_tensors
        # Not times y's gradient: the loss is a term of the total loss, and no part of y.
        return gradients[0], torch.full_like(loss, ctx.scale), None


def layers(model: nn.Module) -> list[MoELayer]:
    """The mixtures of experts in a model, in its order."""
    return [module for module in model.modules() if isinstance(module, MoELayer)]


def auxiliary_loss(model: nn.Module) -> Float[Tensor, ""]:
    """The sum over all mixtures of the last forward's auxiliary losses, to be added to the model's loss.

    Raises:
        ValueError: There is none in the model.
        RuntimeError: The model has not been called.
    """
    losses = [layer.auxiliary_loss for layer in layers(model)]
    if not losses:
        raise ValueError("model has no MoELayer; replace feed-forward layers first, as moe_gpt.replace_mlps does")
    return torch.stack(losses).sum()


def load(model: nn.Module) -> list[Int[Tensor, " experts"]]:
    """For each mixture, how many of this rank's tokens went to each expert in the last forward."""
    return [layer.routing.load() for layer in layers(model) if layer.routing is not None]
