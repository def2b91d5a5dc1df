"""The lesson of `minitrain.planning.partition`: all cuts tried, bounds, and real ranks on the virtual clock."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.planning.chains import SOME, pipeline_time
from minitrain.planning.partition import partition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BOKHARI, PINAR = "Bokhari 1988", "Pinar & Aykanat 2004, §2"
LAYERS = (3, 1, 1, 2, 4, 1, 2, 5, 1, 3, 2)  # virtual seconds, whole numbers, so that no time rounds
MESSAGES = (4, 1, 4, 3, 6, 2, 1, 5, 1, 2, 0)


def demo(world: World, minibatches: int = 6) -> list[Claim]:
    """Cuts chains of layers into stages; the table shows all cuts tried, bounds, and ranks on the virtual clock.

    Args:
        minibatches: K, which pass through a pipeline of all ranks.
    """
    world.figure(picture)
    return [*best_of_all(), within_bounds(), *on_ranks(world, minibatches)]


def best_of_all() -> list[Claim]:
    """Claims on the slowest stage, added up over 84 chains: the best of all cuts for each, so any slower one shows."""
    without, with_messages = {}, {}
    for p in range(2, 7):
        predicted, measured = sum(costs.best_cut(chain, p) for chain in SOME), 0.0
        for chain in SOME:
            measured += slowest(chain, partition(chain, p)[1])
        without[f"{p} stages"] = Claim("", "min over C(7, p−1) cuts", predicted, measured, "s", BOKHARI, "compared")
        # Messages of 4 to 12 seconds, long ones after short layers.
        messages = [[4 * (4 - seconds) for seconds in chain] for chain in SOME]
        pairs = list(zip(SOME, messages, strict=True))
        predicted = sum(costs.best_cut(chain, p, sizes) for chain, sizes in pairs)
        measured = sum(slowest(chain, partition(chain, p, sizes)[1], sizes) for chain, sizes in pairs)
        with_messages[f"{p} stages"] = Claim(
            "", "min over C(7, p−1) cuts", predicted, measured, "s", BOKHARI, "compared"
        )
    return [
        fold("slowest stages of 84 chains of 8 layers, added up, in 2 to 6 stages", without, key=True),
        fold("the same where messages over a cut take 4 to 12 s", with_messages, key=True),
    ]


def slowest(seconds, counts, messages=()) -> float:
    """The slowest stage or message of a cut, added up layer by layer."""
    ends = list(accumulate(counts))
    times = [sum(seconds[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    return max(times + [messages[end - 1] for end in ends[:-1] if messages])


def within_bounds() -> Claim:
    """The claim on the upper bound; the lower one is an equality where layers are equal."""
    cases = {}
    for p in range(2, 7):
        for chain in SOME:
            most = costs.cut_bounds(chain, p)[1]
            measured = partition(chain, p)[0]
            cases[f"{chain} in {p}"] = Claim("", "Σt/p + (1 − 1/p) max t", most, measured, "s", PINAR, relation="<=")
    return fold("slowest stage of the best cut, 84 chains in 2 to 6 stages", cases)


def on_ranks(world: World, minibatches: int) -> list[Claim]:
    """Claims on a pipeline of all ranks: how long it takes with the best cut, and which of several cuts is faster."""
    p, cases, ends = world.size, {}, []
    time, counts = partition(LAYERS, p)
    cuts = {"best": counts, "first layers alone": [1] * (p - 1) + [len(LAYERS) - p + 1]}
    cuts["last layers alone"] = cuts["first layers alone"][::-1]
    cuts["equally many"] = [len(LAYERS) // p + (stage < len(LAYERS) % p) for stage in range(p)]
    source = "derived"
    for name, counts in cuts.items():
        stages = [sum(LAYERS[end - count : end]) for count, end in zip(counts, accumulate(counts), strict=True)]
        measured = pipeline_time(world, [(each, 1) for each in stages], minibatches)
        predicted = costs.flow(stages, minibatches)
        ends.append((predicted, measured))
        cases[name] = Claim(
            "", "Σt + (K − 1) max t", predicted, measured, "virtual s", source, "virtual clock", key=True
        )
    wrong = sum((a - b) * (x - y) < 0 or (a == b) != (x == y) for a, x in ends for b, y in ends)
    between = partition(LAYERS, p, MESSAGES)[1]
    ends_of = list(accumulate(between))
    stages = [sum(LAYERS[end - count : end]) for count, end in zip(between, ends_of, strict=True)]
    sent = [MESSAGES[end - 1] for end in ends_of[:-1]]
    took = pipeline_time(world, [(each, 1) for each in stages], minibatches, sent)
    first = pipeline_time(world, [(each, 1) for each in stages], minibatches - 1, sent)
    what = f"time of {minibatches} minibatches through a pipeline of all ranks, for the best cut and three others"
    return [
        fold(what, cases, key=True),
        Claim("pairs of these cuts whose order by time is not the predicted one", "0", 0, wrong, source=source),
        Claim(
            "time between minibatches at the end of the pipeline, messages included",
            "max(t, message)",
            costs.best_cut(LAYERS, p, MESSAGES),
            took - first,
            "virtual s",
            BOKHARI,
            "virtual clock",
            key=True,
        ),
    ]


def picture() -> Figure:
    """The slowest stage for each number of stages, between its bounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes, stages = figure.subplots(), range(1, len(LAYERS) + 1)
    bounds = [costs.cut_bounds(LAYERS, p) for p in stages]
    least, most = zip(*bounds, strict=True)
    axes.fill_between(stages, least, most, alpha=0.2, label="bounds")
    axes.plot(stages, [partition(LAYERS, p)[0] for p in stages], "o-", label="best cut")
    axes.plot(stages, [sum(LAYERS) / p for p in stages], ":", label="Σt/p")
    axes.set(xlabel="stages", ylabel="seconds of the slowest stage", title=f"layers of {LAYERS} s")
    axes.legend()
    return figure
