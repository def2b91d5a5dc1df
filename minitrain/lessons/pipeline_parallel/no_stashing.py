"""The lesson of `minitrain.pipeline_parallel.no_stashing`: what its demo claims, and how that is measured.

A gradient of no function, by hand. One stage has two layers with one weight each, z = b·(a·x), and the loss ½(z − t)²
with x = 1. Between forward and backward b becomes b − δ. With r = ab − t, backward finds G = (r(b−δ), ra) where the
gradient is (rb, ra): the first element is off by −rδ. If G were the gradient of any function φ of (a, b), its cross
derivatives would be equal, ∂²φ/∂b∂a = ∂²φ/∂a∂b. They are a(b−δ) + r and ab + r, so that they differ by −aδ. Loss and G
are of second degree in each weight, so central differences are exact, whatever their step.
"""

from __future__ import annotations

import torch

from minitrain.comm import World
from minitrain.lessons.pipeline_parallel import versions
from minitrain.lessons.rows import Claim, Rows
from minitrain.pipeline_parallel import no_stashing, schedules

A, B, TARGET, DELTA = 1.5, 2.0, 1.0, 0.5  # dyadic, so that no sum rounds
STEP = 0.25  # of the differences


def demo(world: World) -> list[Claim]:
    """Trains a GPT with neither flush nor stashing; the table shows that its gradients are those of no function."""
    rows, schedule = Rows("derived"), schedules.no_stashing(world.size, 16)
    training = versions.observed(world, no_stashing.train, schedule, "no stashing")
    what = "bytes of versions of its weights that this rank keeps, one version of Wᵣ bytes"
    rows.add(what, "Wᵣ", training.bytes, training.kept, "B", "Narayanan et al. 2019, §3.3")
    mixed = training.microbatches - 1 if world.rank < world.size - 1 else 0
    what = "backwards of this rank r that find other weights than their forward"
    rows.add(what, "N − 1 for r < p−1, else 0", mixed, training.mixed(), "1")

    residual, slope = A * B - TARGET, (loss(A + STEP, B) - loss(A - STEP, B)) / (2 * STEP)
    what = "two layers z = b(ax), b updated by −δ in flight: gradient of a minus the finite difference of the loss"
    rows.add(what, "−rδ, r = ab − t", -residual * DELTA, mixed_gradient(A, B)[0] - slope, "1", how="compared")
    by_b = (mixed_gradient(A, B + STEP)[0] - mixed_gradient(A, B - STEP)[0]) / (2 * STEP)
    by_a = (mixed_gradient(A + STEP, B)[1] - mixed_gradient(A - STEP, B)[1]) / (2 * STEP)
    what = "the same: difference of the cross derivatives, which would be equal for the gradient of any function"
    rows.add(what, "−aδ", -A * DELTA, by_b - by_a, "1", how="compared")
    return rows.claims()


def loss(a: float, b: float) -> float:
    """½(ab − t)²."""
    return (a * b - TARGET) ** 2 / 2


def mixed_gradient(a: float, b: float, delta: float = DELTA) -> tuple[float, float]:
    """What autograd makes of the two layers if b is lowered by `delta` between forward and backward."""
    first, second = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (a, b))
    value = (second * first - TARGET) ** 2 / 2
    # Behind autograd's back, as in the small form.
    second.data -= delta
    by_a, by_b = torch.autograd.grad(value, [first, second])
    return by_a.item(), by_b.item()
