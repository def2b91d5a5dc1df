"""The lesson of `minitrain.pipeline_parallel.weight_gradients`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.comm.memory import storage_bytes
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel.weight_gradients import SplitBackward, finish


def demo(world: World) -> list[Claim]:
    """Takes a linear layer's backward apart; the table shows the operations of F, I and W, and what is kept between."""
    tokens, inputs, outputs = 24, 16, 40
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, inputs, generator=generator).to(world.device).requires_grad_()
    layer = nn.Linear(inputs, outputs).to(world.device)
    layer(x).square().sum().backward()
    leaves = (x, layer.weight, layer.bias)
    whole = [leaf.grad for leaf in leaves if leaf.grad is not None]
    x.grad = layer.weight.grad = layer.bias.grad = None

    split, tasks, operations = SplitBackward(layer), [], {}
    with FlopCounterMode(display=False) as operations["F"], split.into(tasks):
        loss = layer(x).square().sum()
    with FlopCounterMode(display=False) as operations["I"], split.into(tasks):
        loss.backward()
    kept = storage_bytes(tensor for _, *pair in tasks for tensor in pair)
    with FlopCounterMode(display=False) as operations["W"]:
        finish(tasks)
    rows = Rows("Qi et al. 2023, §1")
    for kind, counter in operations.items():
        theory = 2 * tokens * inputs * outputs
        what = "operations of F, of I and of W"
        rows.add(what, "2·t·i·o", theory, counter.get_total_flops(), "1", "Qi et al. 2023, table 1", case=kind)
    rows.add("bytes kept from I to W", "w·t(i + o)", 4 * tokens * (inputs + outputs), kept, "B", "Qi et al. 2023, §2.3")
    what = "gradient elements that differ from those of a whole backward"
    rows.equal(what, [leaf.grad for leaf in leaves if leaf.grad is not None], whole, source="Qi et al. 2023, §1")
    return rows.claims()
