"""LARS: SGD with momentum, whose step in each layer is a fixed part of the norm of that layer's weights.

**Idea.** With a large learning rate, some layers diverge where others hardly move, because ‖w‖/‖g‖ differs from layer
to layer. So each layer gets the rate λ = η ‖w‖ / (‖g‖ + β‖w‖), and its step no longer depends on how large g is.

**Source.** You, Gitman & Ginsburg 2017, "Large batch training of convolutional networks", §4, equation 6, algorithm 1.
Weight decay β is in the ratio, as in the paper; several public versions leave it out, or divide by ‖g + βw‖. Both rates
are inside the momentum, so a later rate doesn't change earlier steps; in torch's SGD the rate is outside.
**Sent.** Nothing. Where ranks have parts of layers (ZeRO), one all-reduce of 2 numbers per layer.
**Cost.** The momentum, 4 bytes of states per parameter in float32.
The full form, `minitrain.optimizers.full.layer_wise`, adds parameter groups, state dicts, and ZeRO's shards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce
from minitrain.optimizers.adam import gradients


class LARS:
    """`LARS(model.parameters(), lr=1.0)`, and `step()` after each backward. A parameter is a layer.

    Args:
        parameters: All layers; where they are sharded, this rank's part of each, which may be empty.
        lr: The global rate γ; the paper lets it fall as (1 − t/T)².
        momentum: m.
        weight_decay: β.
        eta: η, how far a layer trusts its step.
        sharded: Whether the ranks of `group` have parts of each layer, so that norms are sums over ranks.
        group: These ranks; None means everyone.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        eta: float = 1e-3,
        sharded: bool = False,
        group: Group = None,
    ):
        assert lr > 0 and 0 <= momentum < 1 and weight_decay >= 0, f"invalid: {lr=}, {momentum=}, {weight_decay=}"
        self.parameters, self.lr, self.momentum = list(parameters), lr, momentum
        self.weight_decay, self.eta, self.sharded, self.group = weight_decay, eta, sharded, group
        self.v = [torch.zeros_like(w) for w in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        g = gradients(self.parameters)
        # Squares can be added over ranks, norms cannot.
        squares = [(w.square().sum(), g_l.square().sum()) for w, g_l in zip(self.parameters, g, strict=True)]
        norms = torch.stack([torch.stack(pair) for pair in squares])  # (layers, 2)
        if self.sharded:
            # All layers in one message, since so few bytes cost only its latency.
            all_reduce(norms, self.group).wait()
        for w, g_l, v, (w_norm, g_norm) in zip(self.parameters, g, self.v, norms.sqrt(), strict=True):
            rate = self.eta * w_norm / (g_norm + self.weight_decay * w_norm)
            # A layer of zeros would stay zero forever; as usual, it steps like plain SGD.
            rate = torch.where((w_norm > 0) & (g_norm > 0), rate, 1.0)
            # γ and λ are inside v, so that a step keeps the rate of its time.
            v.mul_(self.momentum).add_(self.lr * rate * (g_l + self.weight_decay * w))
            w.sub_(v)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
