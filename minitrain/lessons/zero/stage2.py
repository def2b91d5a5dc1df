"""The lesson of `minitrain.zero.stage2`: gradients held between steps and at most, bytes sent, and DDP's weights."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import Peak, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.costs import zero as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.lessons.zero import small
from minitrain.lessons.zero.common import held
from minitrain.zero import stage2
from minitrain.zero.full.stage2 import Zero2


def demo(world: World) -> list[Claim]:
    """Divides gradients while backward runs; the table shows bytes held and sent, and equality with torch's DDP."""
    rows = Rows(f"{small.PAPER}, §5.2")
    model = small.wrap(world, stage2.Zero2)
    small.sent(rows, world, 2, model, 4)
    rows.add(
        "small form: bytes of gradients between steps",
        "Σ of sw, s = ⌈E/n⌉, w = 4",
        costs.held(2, small.lines(), world.size)["gradients"],
        storage_bytes(each.grad for each in (*model.module.parameters(), *model.shards)),
    )
    small.like_full_form(rows, world, stage2.Zero2, Zero2)
    layers = [costs.Line(HIDDEN * HIDDEN, 4)] * LAYERS
    rows.add(
        "full form: most bytes of gradients at once, 8 layers of G bytes in shards of s bytes",
        "Ls + 3G",
        costs.held(2, layers, world.size)["gradients"] + costs.gradient_peak(layers, 4 * HIDDEN * HIDDEN, world.size),
        most_gradients(world),
        source=f"{small.PAPER}, §5.2; Zhao et al. 2023, §3.4",
        absolute=8 * 4 * HIDDEN,  # activations' gradients, of a single sample
    )
    small.like_ddp(rows, world, stage2.Zero2)
    return rows.claims()


LAYERS, HIDDEN = 8, 128


def most_gradients(world: World) -> int:
    """The most bytes of gradients that a rank holds in a step of the full form, shards included.

    Through the ring, whose receive buffers stay from the first step, where gloo would copy gradients unseen: the small
    form's peak depends on which rank is ahead.
    """
    module = nn.Sequential(*(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(LAYERS))).to(world.device)
    model = Zero2(module, torch.optim.SGD, Comm(collectives=ring), lr=0.1)
    kept = peak = 0
    for _ in range(2):  # the second time shards have their memory
        loss = model(torch.ones(1, HIDDEN, device=world.device)).sum()
        with Peak(world.device) as above:
            loss.backward()
            model.synchronize()
        peak = kept + above.bytes
        kept = held(model)["gradients"]
        model.step()
        model.zero_grad()
    return peak
