"""The lesson of `minitrain.pipeline_parallel.weight_gradients`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.pipeline_parallel.weight_gradients import SplitBackward, finish


def demo(world: World, tokens: int = 24, inputs: int = 16, outputs: int = 40) -> list[Claim]:
    """Takes backward of a linear layer apart; the table shows the operations of F, I and W, and what is kept between.

    Args:
        tokens: t, the rows of X.
        inputs: i, the columns of X.
        outputs: o, the columns of Y.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, inputs, generator=generator).to(world.device).requires_grad_()
    layer = nn.Linear(inputs, outputs).to(world.device)
    layer(x).square().sum().backward()
    leaves = (x, layer.weight, layer.bias)
    whole = [leaf.grad for leaf in leaves]
    x.grad = layer.weight.grad = layer.bias.grad = None

    split, tasks, operations = SplitBackward(layer), [], {}
    with FlopCounterMode(display=False) as operations["F"], split.into(tasks):
        loss = layer(x).square().sum()
    with FlopCounterMode(display=False) as operations["I"], split.into(tasks):
        loss.backward()
    kept = storage_bytes(tensor for _, *pair in tasks for tensor in pair)
    with FlopCounterMode(display=False) as operations["W"]:
        finish(tasks)
    unlike = 0
    for leaf, expected in zip(leaves, whole, strict=True):
        assert leaf.grad is not None and expected is not None
        unlike += int((leaf.grad != expected).sum())

    source = "Qi et al. 2023"
    what = "operations of F, of I and of W"
    each = {
        kind: Claim(
            what, "2·t·i·o", 2 * tokens * inputs * outputs, counter.get_total_flops(), source=f"{source}, table 1"
        )
        for kind, counter in operations.items()
    }
    bytes_kept = 4 * tokens * (inputs + outputs)
    different = "gradient elements that differ from those of a whole backward"
    return as_key(
        fold(what, each),
        Claim("bytes kept from I to W", "w·t(i + o)", bytes_kept, kept, "B", f"{source}, §2.3"),
        Claim(different, "0", 0, unlike, "1", f"{source}, §1", how="compared"),
    )
