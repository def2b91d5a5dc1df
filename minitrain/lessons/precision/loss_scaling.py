"""The lesson of `minitrain.precision.loss_scaling`: a real GPT's gradients in float16, and an overflow on one rank."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from minitrain.comm import World
from minitrain.costs import precision as costs
from minitrain.lessons.pictures import precision as pictures
from minitrain.lessons.precision.common import Loss, batch, one_thread
from minitrain.lessons.rows import Claim, Rows
from minitrain.precision.formats import FLOAT16
from minitrain.precision.loss_scaling import LossScale

SCALES = (1.0, 8.0, 2.0**16)
STEPS, AT = 6, 2  # and the step in which the last rank overflows


def demo(world: World) -> list[Claim]:
    """Scales a real GPT's gradients, and lets one rank overflow; the table counts zeros, and all skip the step."""
    rows, gradients = Rows("Micikevicius et al. 2018, §3.2"), real_gradients(world)
    world.figure(lambda: pictures.gradients(gradients, SCALES))
    limit, some = costs.flushed_below(FLOAT16.exponent, FLOAT16.mantissa), gradients[gradients != 0]
    for scale in SCALES:
        below, zeros = int((some.abs() * scale <= limit).sum()), int(((some * scale).half() == 0).sum())
        what, case = "gradients of a GPT that become 0 in float16; at scales 1, 8 and 65536", f"scale {scale:g}"
        rows.add(what, "#{|g| · scale ≤ 2^−25}", below, zeros, "1", case=case)
        world.cost(f"of a GPT's gradients, 0 in float16 at {case}", 100 * zeros / len(gradients), "%")

    weight, scale = torch.ones(4, device=world.device), LossScale(every=3)
    for step in range(STEPS):
        gradient = torch.full_like(weight, scale.scale)
        if step == AT and world.rank == world.size - 1:
            gradient[0] = torch.inf
        if scale.unscale([gradient]):
            weight -= 0.125 * gradient
        scale.update()
    what = "weight on every rank, where one rank alone overflows once"
    rows.add(what, "1 − (steps − 1) · 1/8", 1 - (STEPS - 1) / 8, weight[1].item(), "1")
    # Halved at the overflow; the three steps after it are without one.
    rows.add("scale afterwards", "2¹⁶ / 2 · 2", 2.0**16, scale.scale, "1")
    return rows.claims()


@one_thread()
def real_gradients(world: World, steps: int = 20) -> Tensor:
    """All gradients of a small GPT in float32, after some steps on real text; the same on each rank.

    They are computed in float64, so that their counts are the same on every processor: in float32 one of 35,000
    gradients is so close to a limit that another order of additions moves it to the other side.
    """
    model = Loss(world.device).gpt.double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps + 1):
        optimizer.zero_grad()
        tokens, targets = batch(world, step, rank=0)
        logits, _ = model(tokens)
        functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        if step < steps:
            optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).float().cpu()
