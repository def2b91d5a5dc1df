"""The lesson of `minitrain.planning.profile`: bytes of layers."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from minitrain.comm import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning import profile

WIDTHS = (24, 50, 33, 70, 10)  # of an MLP


def demo(world: World, batch: int = 7) -> list[Claim]:
    """Profiles an MLP on each rank; the table shows the bytes of each layer.

    Args:
        batch: Rows of a minibatch.
    """
    rows = Rows("derived, for the numbers that Narayanan et al. 2019, §3.1 names")
    layers = [layer for sizes in pairwise(WIDTHS) for layer in (nn.Linear(*sizes), nn.GELU())]
    x = torch.ones(batch, WIDTHS[0], device=world.device)
    measured = profile.measure(nn.Sequential(*layers).to(world.device), x, 3)
    for number, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        linear, gelu = measured[2 * number : 2 * number + 2]
        for each in (linear, gelu):
            what, size = "bytes that each layer of an MLP passes on", 4 * batch * outputs
            rows.add(what, "4 · batch · features", size, each.activation, case=f"layer {each.name}")
        size = 4 * (inputs * outputs + outputs)
        rows.add("bytes of each layer's weights", "4(in · out + out)", size, linear.weight, case=f"layer {linear.name}")
    return rows.claims()
