"""The lesson of `minitrain.pipeline_parallel.no_stashing`: what its demo claims, and how that is measured.

A gradient of no function, by hand. One stage has two layers with one weight each, z = b·(a·x), and the loss ½(z − t)²
with x = 1. Between forward and backward b becomes b − δ. With r = ab − t, backward finds G = (r(b−δ), ra) where the
gradient is (rb, ra): the first element is off by −rδ. If G were the gradient of any function φ of (a, b), its cross
derivatives would be equal, ∂²φ/∂b∂a = ∂²φ/∂a∂b. They are a(b−δ) + r and ab + r, so that they differ by −aδ. Loss and G
are of second degree in each weight, so central differences are exact, whatever their step.
"""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.pipeline_parallel import versions
from minitrain.pipeline_parallel import no_stashing, schedules
from minitrain.pipeline_parallel.full.drawing import draw_run

A, B, TARGET, DELTA = 1.5, 2.0, 1.0, 0.5  # dyadic, so that no sum rounds
STEP = 0.25  # of the differences


def demo(world: World, microbatches: int = 16, hidden: int = 16) -> list[Claim]:
    """Trains a GPT without a flush and without stashing; the table shows that its gradients are those of no function.

    Args:
        microbatches: N, of the whole training.
        hidden: Width of the GPT, which has two blocks for each rank.
    """
    rank, ranks = world.rank, world.size
    schedule = schedules.no_stashing(ranks, microbatches)
    training = versions.Training(world, no_stashing.train, microbatches, hidden)
    title = f"no stashing: {ranks} ranks, {microbatches} micro-batches"
    world.figure(partial(draw_run, training.spans, schedule, title, "virtual seconds"))
    return [
        Claim(
            "bytes of versions of its weights that this rank keeps, one version of Wᵣ bytes",
            "Wᵣ",
            training.bytes,
            training.kept,
            "B",
            versions.PIPEDREAM,
            key=True,
        ),
        Claim(
            "backwards of this rank r that find other weights than their forward",
            "N − 1 for r < n−1, else 0",
            microbatches - 1 if rank < ranks - 1 else 0,
            training.mixed(),
            source="derived",
            key=True,
        ),
        _differs_from_stashing(world, training, hidden),
        *by_hand(),
        *versions.as_scheduled(schedule, training),
    ]


def _differs_from_stashing(world: World, training: versions.Training, hidden: int) -> Claim:
    what = "weights of this stage, and losses, that differ from the equation of weight stashing"
    if world.size == 1:
        return Claim.needs_ranks(2, what, "≥ 1", versions.PIPEDREAM)
    delays = [world.size - 1 - stage for stage in range(world.size)]
    differ = versions.like_equation(world, training, delays, hidden)
    return Claim(what, "≥ 1", 1, differ, "1", versions.PIPEDREAM, "compared", ">=")


def by_hand() -> list[Claim]:
    """Claims on the two layers with one weight each, as worked out in this file's head."""
    residual = A * B - TARGET
    found = mixed_gradient(A, B)[0]
    slope = (loss(A + STEP, B) - loss(A - STEP, B)) / (2 * STEP)
    crossed = {
        delta: (mixed_gradient(A, B + STEP, delta)[0] - mixed_gradient(A, B - STEP, delta)[0]) / (2 * STEP)
        - (mixed_gradient(A + STEP, B, delta)[1] - mixed_gradient(A - STEP, B, delta)[1]) / (2 * STEP)
        for delta in (DELTA, 0.0)
    }
    return [
        Claim(
            "two layers z = b(ax), b updated by −δ in flight: gradient of a minus the finite difference of the loss",
            "−rδ, r = ab − t",
            -residual * DELTA,
            found - slope,
            "1",
            "derived",
            "compared",
            key=True,
        ),
        Claim(
            "the same: difference of the cross derivatives, which would be equal for the gradient of any function",
            "−aδ",
            -A * DELTA,
            crossed[DELTA],
            "1",
            "derived",
            "compared",
            key=True,
        ),
        Claim(
            "the same with the weights stashed, so that backward finds b itself",
            "0",
            0,
            crossed[0.0],
            "1",
            "derived",
            "compared",
        ),
    ]


def loss(a: float, b: float) -> float:
    """½(ab − t)²."""
    return (a * b - TARGET) ** 2 / 2


def mixed_gradient(a: float, b: float, delta: float = DELTA) -> tuple[float, float]:
    """What autograd makes of the two layers if b is lowered by `delta` between forward and backward."""
    first, second = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (a, b))
    x = torch.ones((), dtype=torch.float64)
    z = second * (first * x)
    value = (z - TARGET) ** 2 / 2
    # Behind autograd's back, as in the small form.
    second.data -= delta
    by_a, by_b = torch.autograd.grad(value, [first, second])
    return by_a.item(), by_b.item()
