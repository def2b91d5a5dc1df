"""A hook for each gradient that runs after the user's own, and does not keep its owner alive.

Autograd adds a parameter's gradients to `.grad` in one node of the graph. Its hooks run after those of
`register_post_accumulate_grad_hook`, whichever was given first: what is sent is the gradient as the user's hook left
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge


def call_when_accumulated(parameter: Tensor, method: Callable[..., None], *arguments: Any) -> Node:
    """Call `method(*arguments, parameter)` whenever backward has added a gradient to `.grad`.

    Args:
        parameter: Whose gradient.
        method: Bound to an object. It is called as long as that object lives.
        *arguments: Given to it before the parameter. None may refer to the parameter.

    Returns:
        The node: the parameter refers to it weakly, so the hook works only as long as the caller keeps it.
    """
    # torch hides what hooks refer to from Python's garbage collector: a hook that held the wrapped model, which holds
    # the parameter, would keep both, and their memory, as long as the program runs.
    weak = WeakMethod(method)
    # The node that adds to `.grad`: its hooks come after those that the user has given to the parameter.
    node = get_gradient_edge(parameter).node

    def hook(*_: Any) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments, parameter)

    node.register_hook(hook)
    return node
