"""The lesson of `minitrain.data_parallel.local_sgd`: one step apart from data parallelism, and where many steps lead.

The losses are quadratic, so that all of it can be solved by hand (`quadratics`). What H costs a language model cannot
be claimed, only tried: `minitrain.lessons.data_parallel.rounds` trains one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.local_sgd import LocalSGD
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel import quadratics as lesson

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STICH = "Stich 2019, algorithm 1"
EVERY = (1, 2, 4, 16)  # each divides STEPS
STEPS = 64  # (1 − α/2)⁶⁴ < 10⁻¹⁹: nothing is left of the beginning


def demo(world: World, every: int = 4, steps: int = 24) -> list[Claim]:
    """Averages parameters every H-th step; the table shows equality with H = 1, bytes, and where ranks settle.

    The picture: the distance from the optimum over the steps, for several H.

    Args:
        every: H.
        steps: T, in which what is sent is counted.
    """
    if every < 1 or steps < every:
        raise ValueError(f"every={every} must be at least 1, and at most steps={steps}")
    means = NaiveDataParallel(lesson.Quadratic(world, world.rank))
    with world.timed(f"{STEPS} steps of data parallelism"):
        optimum = lesson.train(means, STEPS)
    ends, paths = {}, {}
    for each in EVERY:
        path: list[float] = []
        model = LocalSGD(lesson.Quadratic(world, world.rank), each)
        ends[each] = lesson.train(model, STEPS, lambda model=model, path=path: path.append(apart(model, optimum)))
        paths[each] = path
    world.figure(lambda: picture(paths))
    return [
        like_data_parallel(world, 20),
        like_one_device(world, every, 4 * every),
        *settled(world, ends, optimum),
        sent(world, every, steps),
        spread(world, every),
    ]


def apart(model: LocalSGD, optimum: Tensor) -> float:
    return float((lesson.flat(model.module).detach() - optimum).abs().max())


def like_data_parallel(world: World, steps: int) -> Claim:
    """The claim that averaging parameters in every step is averaging gradients."""
    found = lesson.train(LocalSGD(lesson.Quadratic(world, world.rank), 1), steps)
    right = lesson.train(NaiveDataParallel(lesson.Quadratic(world, world.rank)), steps)
    return Claim(
        f"H = 1: largest difference from data parallelism after {steps} steps of SGD",
        "mean of θ − αgᵣ = θ − αḡ",
        0,
        float((found - right).abs().max()),
        source=STICH,
        how="compared",
        absolute=lesson.rounding(steps, world.size),
        key=True,
    )


def like_one_device(world: World, every: int, steps: int) -> Claim:
    """The claim that one device, taking every rank's steps in turn, arrives at the same."""
    cases = {}
    for each in (every, 1, 2 * every):
        found = lesson.train(LocalSGD(lesson.Quadratic(world, world.rank), each), steps)
        right = lesson.alone(world, world.size, steps, each)
        difference, most = float((found - right).abs().max()), lesson.rounding(steps, world.size)
        cases[f"H = {each}"] = Claim("", "θ = mean of θᵣ", 0, difference, source=STICH, how="compared", absolute=most)
    return fold("largest difference from one device that takes all ranks' steps in turn, for three H", cases)


def settled(world: World, ends: dict[int, Tensor], optimum: Tensor) -> list[Claim]:
    """Claims on where the ranks' mean settles, and how far that is from what data parallelism finds."""
    groups, most = [[rank] for rank in range(world.size)], lesson.rounding(STEPS, world.size)
    places, gaps = {}, {}
    for every, end in ends.items():
        predicted = lesson.settled(groups, every).to(world.device)
        places[f"H = {every}"] = Claim(
            "",
            "Σ(1−qᵣ)cᵣ / Σ(1−qᵣ)",
            0,
            float((end - predicted).abs().max()),
            "1",
            "derived",
            "compared",
            absolute=most,
        )
        gap = float((predicted - lesson.best(world.size).to(world.device)).abs().max())
        measured = float((end - optimum).abs().max())
        gaps[f"H = {every}"] = Claim("", "|θ_H − θ*|", gap, measured, "1", "derived", "compared", absolute=2 * most)
    hs = ", ".join(map(str, ends))
    # The farthest first, since a fold shows its first case.
    return [
        fold(f"where averages settle after {STEPS} steps: largest difference from theory, H = {hs}", places, key=True),
        fold(
            f"how far that is from the optimum that data parallelism finds, H = {', '.join(map(str, reversed(ends)))}",
            dict(reversed(gaps.items())),
            key=True,
        ),
    ]


def sent(world: World, every: int, steps: int) -> Claim:
    """The claim on bytes; a period that steps do not divide sends nothing at the end."""
    cases = {}
    for each in (every, 1, every + 1, steps + 1):
        model = LocalSGD(lesson.Quadratic(world, world.rank), each)
        with Ledger() as ledger:
            lesson.train(model, steps)
        predicted = costs.averaged_bytes(8 * lesson.ELEMENTS, steps, each)
        assert ledger.payload("all_reduce") == sum(entry.bytes for entry in ledger.entries)
        cases[f"H = {each}"] = Claim("", "⌊T/H⌋ S", predicted, ledger.payload("all_reduce"), "B", "Stich 2019, §1")
    return fold(f"bytes into all-reduces in {steps} steps, H = {every}; and three others", cases, key=True)


def spread(world: World, every: int) -> Claim:
    """The claim that all ranks hold the same after an average."""
    model = LocalSGD(lesson.Quadratic(world, world.rank), every)
    lesson.train(model, every)
    found = gather_objects(lesson.flat(model.module).tolist())
    different = sum(len(set(column)) > 1 for column in zip(*found, strict=True))
    return Claim(
        "elements that differ between ranks after an average", "0", 0, different, "elements", STICH, "compared"
    )


def picture(paths: dict[int, list[float]]) -> Figure:
    """Distances from the optimum on rank 0, on a logarithmic scale; a line per H."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.8), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for (every, path), color in zip(paths.items(), ("#000000", "#009E73", "#0072B2", "#D55E00"), strict=True):
        axes.semilogy(range(1, STEPS + 1), path, color=color, label=f"H = {every}", lw=1)
    axes.set_xlabel("step")
    axes.set_ylabel("distance of rank 0\nfrom the optimum of all")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
