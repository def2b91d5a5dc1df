"""The lesson of `minitrain.recomputation.binarized`: bytes kept, and that no gradient changes."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.costs import gist as costs
from minitrain.lessons.recomputation import cnn
from minitrain.lessons.rows import Claim, Rows
from minitrain.recomputation.binarized import relu_pool

SHAPES = {2: (2, 3, 8, 8), 3: (1, 3, 10, 11), 4: (1, 5, 9, 13)}  # window: input; not all are whole windows


def demo(world: World) -> list[Claim]:
    """Keeps bits of ReLUs and pools; the table shows bytes, and how many gradients differ from torch's."""
    rows = Rows("Jain et al. 2018, §4.1")
    for window, shape in SHAPES.items():
        x = torch.randn(shape, generator=torch.Generator().manual_seed(world.rank)).to(world.device)
        ours, torchs = partial(relu_pool, window=window), partial(cnn.plain_pool, window=window)
        elements, outputs, case = x.numel(), relu_pool(x, window).numel(), f"window {window} × {window}"
        what = "bytes that autograd keeps of a ReLU and a pool, windows of 2 to 4"
        predicted = costs.sign_bytes(elements) + costs.argmax_bytes(outputs)
        rows.add(what, "⌈N/8⌉ + ⌈M/2⌉", predicted, cnn.kept(ours, x), case=case)
        what, before = "bytes that it keeps of torch's", costs.relu_pool_bytes(elements, outputs)
        rows.add(what, "4N + 8M", before, cnn.kept(torchs, x), "B", "derived", case=case)
        # Rounded, it has few different values, and windows without a positive one.
        for each, ties in ((x, ""), (x.detach().round(), ", with ties")):
            what = "elements of gradients that differ from torch's, with ties and without"
            found, right = cnn.gradients(ours, each), cnn.gradients(torchs, each)
            rows.equal(what, found, right, "∇ = ∇ of torch's", case=case + ties)
    return rows.claims()
