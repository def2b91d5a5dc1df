"""A hook for each gradient that lets its owner go.

torch keeps what hooks know out of sight of Python's garbage collector. A hook that knew the wrapped model, which knows
the parameter, would keep all of them, and the memory that they take, as long as the program runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from torch import Tensor


def call_when_accumulated(parameter: Tensor, method: Callable[..., None], *arguments: Any) -> None:
    """Call `method(*arguments, parameter)` whenever backward has added a gradient to `.grad`.

    Args:
        parameter: Whose gradient.
        method: Bound to an object. It is called as long as that object lives.
        *arguments: Given to it before the parameter. None may know the parameter.
    """
    weak = WeakMethod(method)

    def hook(parameter: Tensor) -> None:
        alive = weak()
        if alive is not None:
            alive(*arguments, parameter)

    parameter.register_post_accumulate_grad_hook(hook)
