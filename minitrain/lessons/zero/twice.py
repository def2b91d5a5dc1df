"""What breaks stage 3 in the notebook: a layer that is called twice in a row, and a rule that counts no calls."""

from __future__ import annotations

from torch import Tensor, nn

from minitrain.zero.full.unshard_hooks import Call, UnshardHooks


class OneFlag(UnshardHooks):
    """The wrong rule: a unit that is unsharded needs nothing, and the first call to finish frees it.

    Between the two calls of a layer, the gradient is the input's of the second and the output's of the first. Both
    hooks are called: the first finds the parameters in memory, the second frees them.
    """

    def _begin_backward(self, call: Call, moment: int, gradient: Tensor) -> None:
        if not call.unsharded.is_unsharded:
            super()._begin_backward(call, moment, gradient)


class Twice(nn.Module):
    """A layer that is called twice in a row, as where weights are shared over depth."""

    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.shared = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor) -> Tensor:
        return self.shared[0](self.shared[0](self.first(x)))
