"""LAMB: Adam's direction, with a step in each layer that is a fixed part of the norm of that layer's weights.

**Idea.** As LARS, but after Adam's division: with r = m̂ / (√v̂ + ε), a layer moves by α φ(‖x‖) along (r + λx)/‖r + λx‖.

**Source.** You et al. 2020, "Large batch optimization for deep learning", algorithm 2 of the final version: φ of the
weight's norm, weight decay λx inside the ratio, m and v corrected for bias. Public versions bound ‖x‖ by 10, which is
`phi=(0, 10)`, or skip the bias correction, or leave λx out of the norm. Here φ(z) = z unless bounds are given.
**Sent.** Nothing. Where ranks have parts of layers (ZeRO), one all-reduce of 2 numbers per layer.
**Cost.** m and v, 8 bytes of states per parameter in float32; and each layer's update is kept until its norm is known.
The full form, `minitrain.optimizers.full.layer_wise`, adds parameter groups, state dicts, and ZeRO's shards.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce
from minitrain.optimizers.adam import gradients, moments


class LAMB:
    """`LAMB(model.parameters(), lr=0.01)`, and `step()` after each backward. A parameter is a layer.

    Args:
        parameters: All layers; where they are sharded, this rank's part of each, which may be empty.
        lr: α, the part of its norm by which a layer moves.
        betas: As Adam's.
        eps: As Adam's.
        weight_decay: λ.
        phi: The least and the largest norm that φ lets pass.
        sharded: Whether the ranks of `group` have parts of each layer, so that norms are sums over ranks.
        group: These ranks; None means everyone.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        phi: tuple[float, float] = (0.0, float("inf")),
        sharded: bool = False,
        group: Group = None,
    ):
        assert lr > 0 and all(0 <= beta < 1 for beta in betas), f"invalid: {lr=}, {betas=}"
        assert eps >= 0 and weight_decay >= 0 and 0 <= phi[0] <= phi[1], f"invalid: {eps=}, {weight_decay=}, {phi=}"
        self.parameters, self.lr, self.betas, self.eps = list(parameters), lr, betas, eps
        self.weight_decay, self.phi, self.sharded, self.group = weight_decay, phi, sharded, group
        self.m = [torch.zeros_like(x) for x in self.parameters]
        self.v = [torch.zeros_like(x) for x in self.parameters]
        self.t = 0

    @torch.no_grad()
    def step(self) -> None:
        g = gradients(self.parameters)
        self.t += 1
        updates, squares = [], []
        for x, g_l, m, v in zip(self.parameters, g, self.m, self.v, strict=True):
            m_hat, v_hat = moments(m, v, g_l, self.betas, self.t)
            # The direction is kept until its length is known, and weight decay is part of both.
            updates.append(m_hat / (v_hat.sqrt() + self.eps) + self.weight_decay * x)
            squares.append(torch.stack([x.square().sum(), updates[-1].square().sum()]))
        # Squares can be added over ranks, norms cannot.
        norms = torch.stack(squares)  # (layers, 2)
        if self.sharded:
            # All layers in one message, since so few bytes cost only its latency.
            all_reduce(norms, self.group).wait()
        for x, u, (x_norm, u_norm) in zip(self.parameters, updates, norms.sqrt(), strict=True):
            # A layer of zeros would stay zero forever; as usual, it steps as in Adam.
            ratio = torch.where((x_norm > 0) & (u_norm > 0), x_norm.clamp(*self.phi) / u_norm, 1.0)
            x.sub_(self.lr * ratio * u)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
