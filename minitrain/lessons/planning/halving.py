"""The lesson of `minitrain.planning.halving`: rounds and budget, an exact score, and real trials of layouts."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import all_reduce
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.costs import planning as costs
from minitrain.data.text import Samples
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.planning.chains import pipeline_time
from minitrain.planning.halving import successive_halving
from minitrain.train import build, train_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JAMIESON, LI = "Jamieson & Talwalkar 2016, figure 1", "Li et al. 2018, §3"
LAYERS = (3, 1, 4, 1, 5, 2, 2, 1)  # virtual seconds


def demo(world: World, budget: int = 8) -> list[Claim]:
    """Chooses by short trials; the table shows rounds, the budget, an exact score, and layouts tried on all ranks.

    Args:
        budget: Training steps for all trials of layouts together, at least 8.
    """
    world.figure(picture)
    return [*rounds(), by_virtual_time(world), *by_training(world, budget)]


def rounds() -> list[Claim]:
    """Claims on trials and steps, counted by the function that is tried."""
    trials, steps = {}, {}
    for n, budget, eta in ((16, 100, 2), (16, 100, 4), (9, 81, 3), (7, 50, 2), (10, 45, 3), (2, 5, 2)):
        asked: list[int] = []

        def run(candidate: int, count: int, asked: list[int] = asked) -> float:
            asked.append(count)
            return (5 * candidate) % 17

        successive_halving(range(n), run, budget, eta)
        expected, name = costs.halving_rounds(n, budget, eta), f"n = {n}, budget {budget}, η = {eta}"
        count = sum(candidates for candidates, _ in expected)
        trials[name] = Claim("", "Σ ⌈n/ηᵏ⌉", count, len(asked), "1", LI)
        count = sum(candidates * each for candidates, each in expected)
        steps[name] = Claim("", "Σ ⌈n/ηᵏ⌉ ⌊B/(⌈n/ηᵏ⌉ ⌈log_η n⌉)⌋", count, sum(asked), "1", JAMIESON)
    return [
        fold("trials, for six numbers of candidates and of steps", trials, key=True),
        fold("steps of all trials together", steps, key=True),
    ]


def by_virtual_time(world: World) -> Claim:
    """The claim on the best of every third cut of 8 layers over all ranks, tried on the virtual clock."""
    candidates = list(costs.compositions(len(LAYERS), world.size))[::3]
    slowest = {counts: max(stage_times(counts)) for counts in candidates}

    def run(counts: tuple[int, ...], steps: int) -> float:
        return pipeline_time(world, [(seconds, 1) for seconds in stage_times(counts)], steps) / steps

    # Two steps for each in the first round: a single minibatch takes Σt, whatever the cut.
    best, _ = successive_halving(candidates, run, 2 * len(candidates) * max(1, len(candidates).bit_length()))
    what = "slowest stage of the cut that is chosen by virtual time, over all ranks"
    return Claim(what, "min over all", min(slowest.values()), slowest[best], "s", "derived", "virtual clock", key=True)


def stage_times(counts: tuple[int, ...]) -> list[int]:
    """Seconds of each stage."""
    return [sum(LAYERS[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]


def layouts(n: int) -> list[Layout]:
    """Four layouts of n ranks."""
    return [
        Layout(dp=n),
        Layout(dp=n, zero=1),
        Layout(dp=n, microbatches=2, recompute="full"),
        Layout(pp=n, microbatches=2),
    ]


def described(layout: Layout) -> str:
    """A layout in words."""
    extras = [f"ZeRO {layout.zero}"] * (layout.zero > 0) + ["full recomputation"] * (layout.recompute == "full")
    return ", ".join([str(layout), f"{layout.microbatches} micro-batches", *extras])


def by_training(world: World, budget: int) -> list[Claim]:
    """Claims on real trials: training steps that were made, and that ranks agree. Which layout wins is not claimed."""
    n, scores = world.size, list[tuple[Layout, float]]()
    made = 0
    model = Model(layers=max(2, n), hidden=16, heads=4, positions=8, vocabulary=256)
    text = torch.randint(0, 256, (2000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def run(layout: Layout, steps: int) -> float:
        nonlocal made
        with closing(build(Settings(model, layout, Steps(batch=2 * n)), world.device)) as training:
            world.finish()
            start = time.perf_counter()
            # The first step also allocates states: short trials are misleading, and weigh less in later rounds.
            for step in range(steps):
                train_step(training, step, 2 * n * step, Samples(text, 8))
                made += 1
            world.finish()
        took = torch.tensor((time.perf_counter() - start) / steps, device=world.device)
        # A step takes as long as on the slowest rank, and all ranks have to choose by one number.
        all_reduce(took, op=dist.ReduceOp.MAX).wait()
        scores.append((layout, float(took)))
        return scores[-1][1]

    best, _ = successive_halving(layouts(n), run, budget)
    for number, (layout, seconds) in enumerate(scores, 1):
        world.cost(f"a step in trial {number}: {described(layout)}", seconds, "s")
    world.cost(f"a step of the chosen one: {described(best)}", dict(scores)[best], "s")
    # Of n = 4 candidates half go on: 4 with an eighth of the budget each, then 2 with a fourth.
    predicted = sum(candidates * steps for candidates, steps in costs.halving_rounds(4, budget))
    chosen = len(set(gather_objects(layouts(n).index(best))))
    return [
        Claim("training steps in trials of four layouts", "4⌊B/8⌋ + 2⌊B/4⌋", predicted, made, "1", JAMIESON, key=True),
        Claim("different layouts that ranks choose", "1", 1, chosen, source="derived"),
    ]


def picture() -> Figure:
    """Steps that each of 16 candidates gets, next to an even division of the same budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes, budget, done = figure.subplots(), 256, [0] * 16
    for count, steps in costs.halving_rounds(16, budget):
        axes.bar(range(count), [steps] * count, bottom=done[:count], label=f"round of {count}")
        done = [each + steps * (place < count) for place, each in enumerate(done)]
    axes.axhline(budget / 16, color="black", linestyle="--", label="divided evenly")
    axes.set(xlabel="candidate, the best one first", ylabel="steps", title=f"{budget} steps for 16 candidates, η = 2")
    axes.legend()
    return figure
