"""The lesson of `minitrain.data_parallel.diloco`: what the outer optimizer makes of the mean, its bytes and memory."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.local_sgd import LocalSGD
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel import quadratics as lesson

DOUILLARD = "Douillard et al. 2023, algorithm 1"
plain = partial(torch.optim.SGD, lr=1.0)


def demo(world: World, every: int = 4, steps: int = 24) -> list[Claim]:
    """Steps an outer optimizer every H-th step; the table shows what it equals, bytes, and memory.

    Args:
        every: H, the inner steps of a round.
        steps: T, in which what is sent is counted.
    """
    if every < 1 or steps < every:
        raise ValueError(f"every={every} must be at least 1, and at most steps={steps}")
    claims = [*special_cases(world, every), momentum(world, every), *sent_and_held(world, every, steps)]
    model = DiLoCo(lesson.Quadratic(world, world.rank), every)
    with world.timed(f"{steps} steps"):
        lesson.train(model, steps)
    return claims


def special_cases(world: World, every: int) -> list[Claim]:
    """Claims on an outer optimizer that takes the mean as it is."""
    steps = 5 * every
    most = 2 * lesson.rounding(steps, world.size)
    right = lesson.train(NaiveDataParallel(lesson.Quadratic(world, world.rank)), steps)
    found = lesson.train(DiLoCo(lesson.Quadratic(world, world.rank), 1, plain), steps)
    claims = [
        Claim(
            f"H = 1, inner SGD, outer SGD of rate 1: difference from data parallelism after {steps} steps",
            "θ − (θ − mean of θᵣ)",
            0,
            float((found - right).abs().max()),
            source=DOUILLARD,
            how="compared",
            absolute=most,
            key=True,
        )
    ]
    cases = {}
    for each in (every, 5 * every):
        pair = (
            lesson.train(form, steps)
            for form in (
                DiLoCo(lesson.Quadratic(world, world.rank), each, plain),
                LocalSGD(lesson.Quadratic(world, world.rank), each),
            )
        )
        difference = float(torch.sub(*pair).abs().max())
        cases[f"H = {each}"] = Claim("", "mean of θᵣ", 0, difference, source=DOUILLARD, how="compared", absolute=most)
    return [*claims, fold("outer SGD of rate 1, two H: difference from local SGD", cases, key=True)]


def momentum(world: World, every: int) -> Claim:
    """The claim on the paper's outer optimizer, worked out on one device that takes all ranks' steps.

    Momentum of 0.9 adds up what one round has rounded, at most 1/(1 − 0.9) = 10 times.
    """
    cases = {}
    for each in (every, 1):
        steps = 12 * each
        found = lesson.train(DiLoCo(lesson.Quadratic(world, world.rank), each), steps)
        difference = float((found - lesson.alone(world, world.size, steps, each, 0.7, 0.9)).abs().max())
        most = 10 * lesson.rounding(2 * steps, world.size)
        cases[f"H = {each}"] = Claim(
            "", "θ ← Nesterov(θ, θ − mean of θᵣ)", 0, difference, source=DOUILLARD, how="compared", absolute=most
        )
    return fold("12 rounds: largest difference from one device that takes all ranks' steps in turn", cases, key=True)


def sent_and_held(world: World, every: int, steps: int) -> list[Claim]:
    """Claims on bytes sent, of which none are states of the inner optimizer, and on bytes held."""
    cases, size = {}, 8 * lesson.ELEMENTS
    for each in (every, 1, every + 1):
        model = DiLoCo(lesson.Quadratic(world, world.rank), each)
        with Ledger() as ledger:
            lesson.train(model, steps)
        predicted, counted = costs.averaged_bytes(size, steps, each), sum(entry.bytes for entry in ledger.entries)
        cases[f"H = {each}"] = Claim("", "⌊T/H⌋ S", predicted, counted, "B", "Douillard et al. 2023, §2")
    model = DiLoCo(lesson.Quadratic(world, world.rank), every)
    lesson.train(model, every)
    held: list[Tensor] = [*model.shared, *(state["momentum_buffer"] for state in model.outer.state.values())]
    return [
        fold(f"bytes of all that is sent in {steps} steps, H = {every}; and two others", cases, key=True),
        Claim(
            "bytes held besides the module: the parameters of the last round, and the outer momentum",
            "2S",
            costs.outer_bytes(size),
            storage_bytes(held),
            "B",
            DOUILLARD,
            key=True,
        ),
    ]
