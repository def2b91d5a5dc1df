"""The lesson of `minitrain.recomputation.delayed_precision`: bytes, errors, and what stays exact."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.recomputation.delayed_precision import DelayedPrecision

WIDTHS = (16, 10, 8)


def demo(world: World) -> list[Claim]:
    """Keeps activations in fewer bits; the table shows bytes, errors, and that forward stays exact."""
    rows = Rows("Jain et al. 2018")
    for bits in WIDTHS:
        hooks, x, unit, case = DelayedPrecision(bits), values(world), costs.rounding(bits), f"{bits} bits"
        few = x[:35].view(7, 5)  # no multiple of 3
        weight = nn.Parameter(torch.ones(3, 5, device=world.device))
        exact = few @ weight.detach().T
        size, what = hooks.encode(few)[0].untyped_storage().nbytes(), "bytes kept of 35 values, in 16, 10 and 8 bits"
        rows.add(what, "2N, 4⌈N/3⌉, N", costs.stash_bytes(35, bits), size, case=case)
        error, what = ((hooks.decode(hooks.encode(x)) - x) / x).abs().max(), "largest relative error of a kept value"
        rows.add(what, "2⁻¹¹, 2⁻⁵, 2⁻⁴", unit, float(error), "1", case=case, how="compared", relation="<=")

        # The gradient of a weight is the sum of a gradient of 1 times what was kept, and float32's seven additions.
        with hooks:
            y = few.requires_grad_() @ weight.T
        rows.equal("elements of a layer's output that differ from those with all bits", y.detach(), exact, case=case)
        (gradient,) = torch.autograd.grad(y.sum(), weight)
        rounded, added = unit * few.detach().double().abs().sum(0), 7 * 2.0**-24 / unit
        over = float(((gradient.double() - few.detach().double().sum(0)).abs() / rounded).max())
        what, more = "error of a weight's gradient, over its bound", {"how": "compared", "relation": "<="}
        rows.add(what, "u · Σ|x|", 1, over, "1", "derived", case=case, absolute=added, **more)
    return rows.claims()


def values(world: World) -> Tensor:
    """Of all sizes from 2⁻⁶ to 2⁸, which each of the formats has with all bits of its fraction; this rank's."""
    generator = torch.Generator().manual_seed(world.rank)
    sizes = 2 ** (14 * torch.rand(4000, generator=generator) - 6)
    return (sizes * torch.where(torch.rand(4000, generator=generator) < 0.5, -1.0, 1.0)).to(world.device)
