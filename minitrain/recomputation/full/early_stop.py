"""Recomputation that stops early: backward goes through the graph of the first call, whose gaps the second one fills.

`recomputation/full/checkpoint.py`, to be opened first, makes a second graph and goes backward through that. Here the
first call makes the graph, but in place of every tensor it keeps a `Gap`, a slot. When backward reaches the first, the
function is called again, and the tensors that autograd would keep now go into the gaps, in the same order. Once the
last one is filled, nothing more is needed and the call is aborted. A block's last matrix product, whose output is not
needed, is never repeated: nearly a third of the work of a GPT's block.

And since parameters get their gradients in the graph of the first call, as they do without recomputation,
`torch.autograd.grad`, gradients of gradients, and a parameter used by several checkpoints work as usual.

Torch's `torch.utils.checkpoint.checkpoint` does the same with `use_reentrant=False`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_unflatten

from minitrain.recomputation.full.checkpoint import SAME, Call, kind, unchanged


def checkpoint(function: Callable[..., Any], *args: Any, preserve_random_state: bool = True, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, of which autograd keeps the tensors among the arguments and nothing else.

    Arguments are those of `recomputation.full.checkpoint.checkpoint`. Tensors that the function reaches other than
    through its arguments may be of any kind, and the result requires a gradient where it would without recomputation.
    Hooks that a module calls after its forward are not called if the second call is aborted before them. After
    `backward(retain_graph=True)` recomputed tensors stay, as everything does.

    Raises:
        RuntimeError: At once, if the function changes an input in place. In backward, if an input was changed since,
            or if the second call keeps other tensors than the first.

    Source: Chen et al. 2016, §4; `torch.utils.checkpoint`, `early_stop`.
    """
    call = Call(function, args, kwargs, preserve_random_state)
    if not call.can_learn:
        return function(*args, **kwargs)
    inputs = call.take_inputs()
    gaps = Gaps(call, inputs)
    with saved_tensors_hooks(gaps.leave, Gap.content):
        outputs = call.first(inputs)
    return tree_unflatten(outputs, call.structure)


class Inputs(torch.autograd.Function):
    """A node outside the graph that keeps a call's inputs, so that autograd notices when they are changed."""

    @staticmethod
    def forward(ctx: Any, reach: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        raise AssertionError("nothing is computed from this node")


class Gap:
    """A placeholder in the graph for a tensor. It is gone when autograd has used it."""

    def __init__(self, gaps: Gaps, expected: Any):
        self.gaps, self.expected = gaps, expected  # what kind of tensor belongs here
        self.tensor: Tensor | None = None

    def content(self) -> Tensor:
        """The tensor; the first gap that is asked for has all of them filled."""
        if self.tensor is None:
            self.gaps.fill()
        assert self.tensor is not None
        return self.tensor


class Gaps:
    """The gaps of one call, in the order in which they were left."""

    def __init__(self, call: Call, inputs: list[Tensor]):
        self.call = call
        reach = torch.empty(0, requires_grad=True)  # so that there is a node, whatever the inputs are
        # The node's result, not the node: torch 2.11 frees what a node has saved when its last result is gone.
        self.kept = Inputs.apply(reach, *inputs)
        self.gaps: list[weakref.ref[Gap]] = []  # the graph alone keeps them alive, and what they hold
        self.filled = 0

    def leave(self, tensor: Tensor) -> Gap:
        """Called for each tensor that autograd would keep in the first call."""
        gap = Gap(self, kind(tensor))
        self.gaps.append(weakref.ref(gap))
        return gap

    def fill(self) -> None:
        """Call the function again, up to the last tensor that is needed."""
        inputs = [kept.detach().requires_grad_(kept.requires_grad) for kept in unchanged(self.kept.grad_fn)]
        self.filled = 0
        try:
            with torch.enable_grad(), saved_tensors_hooks(self.keep, never):
                # `Enough` leaves through `again`, which puts random numbers and buffers back on the way.
                self.call.again(inputs)
        except Enough:
            return
        raise RuntimeError(
            f"the function kept {len(self.gaps)} tensors for backward, and {self.filled} when computed again; {SAME}"
        )

    def keep(self, tensor: Tensor) -> None:
        """Called for each tensor that autograd would keep in the second call, whose own graph is not used."""
        gap = self.gaps[self.filled]()
        # None where backward has already used the node that held it.
        if gap is not None:
            if kind(tensor) != gap.expected:
                raise RuntimeError(
                    f"tensor {self.filled} that the function kept for backward was {gap.expected}, and is "
                    f"{kind(tensor)} when computed again; {SAME}"
                )
            # Without the second graph, which would keep every tensor in it alive.
            gap.tensor = tensor.detach()
        self.filled += 1
        if self.filled == len(self.gaps):
            raise Enough


class Enough(BaseException):
    """All gaps are filled. No `Exception`, so that a function that catches those does not catch it."""


def never(kept: None) -> Tensor:
    raise RuntimeError("a checkpointed function cannot go backward inside itself; do so outside of the checkpoint")
