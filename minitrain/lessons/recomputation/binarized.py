"""The lesson of `minitrain.recomputation.binarized`: bytes kept, and that no gradient changes."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.recomputation import cnn
from minitrain.recomputation.binarized import relu_pool

PAPER = "Jain et al. 2018"
SHAPES = {2: (2, 3, 8, 8), 3: (1, 3, 10, 11), 4: (1, 5, 9, 13)}  # window: input; not all are whole windows


def images(world: World, shape: tuple[int, ...], ties: bool = False) -> Tensor:
    """This rank's input of a ReLU; with `ties` it has few different values, and windows without a positive one."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(world.rank)).to(world.device)
    return drawn.round() if ties else drawn


def demo(world: World) -> list[Claim]:
    """Keeps bits of ReLUs and pools; the table shows bytes, and how many gradients differ from torch's."""
    bytes_, plain, same = {}, {}, {}
    for window, shape in SHAPES.items():
        x = images(world, shape)
        elements, outputs = x.numel(), relu_pool(x, window).numel()
        predicted = costs.sign_bytes(elements) + costs.argmax_bytes(outputs)
        case = f"window {window} × {window}, {' × '.join(map(str, shape))}"
        ours, torchs = partial(relu_pool, window=window), partial(cnn.plain_pool, window=window)
        bytes_[case] = Claim("", "⌈N/8⌉ + ⌈M/2⌉", predicted, cnn.kept(ours, x), "B", f"{PAPER}, §4.1")
        before = costs.relu_pool_bytes(elements, outputs)
        plain[case] = Claim("", "4N + 8M", before, cnn.kept(torchs, x), "B", "derived")
        for ties in (False, True):
            x = images(world, shape, ties)
            found = cnn.different(cnn.gradients(ours, x), cnn.gradients(torchs, x))
            name = f"{case}, with ties" if ties else case
            same[name] = Claim("", "∇ = ∇ of torch's", 0, found, "elements", "derived", "compared")
    with world.timed("forward and backward of a ReLU and a pool, in bits"):
        cnn.gradients(relu_pool, images(world, SHAPES[2]))
    return [
        fold("bytes that autograd keeps of a ReLU and a pool, windows of 2 to 4", bytes_, key=True),
        fold("bytes that it keeps of torch's", plain, key=True),
        fold("elements of gradients that differ from torch's, with ties and without", same, key=True),
    ]
