"""Backward in two parts: first the gradient that the stage before waits for, later those of the weights.

**Idea.** For a linear layer Y = XWᵀ + b, backward is two products that do not need each other: dX = dY·W, which the
stage before is waiting for, and dW = dYᵀ·X, which is not needed before the end of the step. So the first is done at
once, and (X, dY) is kept for the second, which fills a gap of the pipeline.

**Source.** Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §1 and figure 1.
**Cost.** The same products in another order: F, I and W are 2·t·i·o operations each for t tokens, i inputs and o
outputs, so the paper's picture has three equal parts (table 1). All else of a micro-batch's graph is released after the
first part (§2.3: M_W instead of M_B).
Also called `WeightGradStore` (the paper's code, Megatron-LM's `delay_wgrad_compute`), `stage_backward_input` and
`stage_backward_weight` (torch.distributed.pipelining, where any layer's graph is cut in two).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

Task = tuple[nn.Linear, Float[Tensor, "tokens inputs"], Float[Tensor, "tokens outputs"]]


class SplitBackward:
    """Lets the linear layers of a module put off the products for their weights.

    Only `nn.Linear` itself is split; layers that multiply in a way of their own, and all other parameters, get their
    gradients in the first part. A layer that is used twice gets both gradients one after the other.

    Args:
        module: Any module. It computes as before wherever `into` is not open.
    """

    def __init__(self, module: nn.Module):
        self._tasks: list[Task] | None = None
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward:
                layer.forward = partial(self._linear, layer)  # type: ignore[method-assign]

    @contextmanager
    def into(self, tasks: list[Task]) -> Iterator[None]:
        """Layers that compute forward in this block will leave their products in `tasks` when backward passes them.

        Backward runs in such a block too, since recomputation computes forward there once more.
        """
        before, self._tasks = self._tasks, tasks
        try:
            yield
        finally:
            self._tasks = before

    def _linear(self, layer: nn.Linear, x: Float[Tensor, "*shape inputs"]) -> Float[Tensor, "*shape outputs"]:
        put_off = self._tasks is not None and torch.is_grad_enabled() and layer.weight.requires_grad
        if not put_off or not layer.weight.is_leaf:  # not a leaf: made by a graph that would have to be kept
            return F.linear(x, layer.weight, layer.bias)
        # A stand-in for the weight makes the result need a gradient where x does not; the weight's own hooks are not
        # called before its gradient is there.
        return _Linear.apply(x, layer.weight.detach().requires_grad_(), layer, self._tasks)


def finish(tasks: list[Task]) -> None:
    """The second part: add to the gradients of weights and biases what the first part has put off."""
    while tasks:
        layer, x, gradient = tasks.pop(0)
        x = x.to(gradient.dtype)  # differs under autocast
        # Handed to autograd, which adds it to `.grad` and calls the parameter's hooks, as any backward does.
        torch.autograd.backward(layer.weight, (gradient.t() @ x).to(layer.weight.dtype))
        if layer.bias is not None and layer.bias.requires_grad:
            torch.autograd.backward(layer.bias, gradient.sum(0).to(layer.bias.dtype))


class _Linear(torch.autograd.Function):
    """Y = XWᵀ + b, whose backward gives dX only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: nn.Linear, tasks: list[Task]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer, ctx.tasks = layer, tasks
        return F.linear(x, weight, layer.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].flatten(0, -2) if gradients[0].dim() > 1 else gradients[0].unsqueeze(0)
        ctx.tasks.append((ctx.layer, x.reshape(-1, x.shape[-1]), gradient))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return (gradient @ weight.to(gradient.dtype)).view(x.shape), None, None, None


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
