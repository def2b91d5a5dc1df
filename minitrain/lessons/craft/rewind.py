"""The lesson of `minitrain.craft.rewind`: after it a run is the one that never had the spoilt samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.craft import rewind
from minitrain.craft.spikes import Spikes
from minitrain.lessons.claims import Claim
from minitrain.lessons.craft import common

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVERY, WINDOW = 10, 32
BAD = {56: "garbage", 58: "garbage", 77: "garbage"}  # late, when losses have settled; two under one checkpoint


def demo(world: World, batches: int = 90) -> list[Claim]:
    """Rewinds a training of a small GPT with garbage in it; the picture: its loss beside that of a clean run.

    Args:
        batches: At least 78, so that all garbage comes.
    """
    if batches <= max(BAD):
        raise ValueError(f"batches={batches} must be more than {max(BAD)}, the last batch of garbage")
    spoilt = common.Training(world, BAD)
    with world.timed(f"{batches} batches with rewinds"):
        losses, left_out = run(spoilt, batches)
    clean = common.Training(world)
    expected = {number: clean.step(number) for number in range(batches) if number not in BAD}
    world.figure(lambda: picture(expected, losses, unattended(world, batches)))
    unlike = sum(losses.get(number) != loss for number, loss in expected.items()) + len(losses.keys() - expected.keys())
    elements = sum(
        int((a != b).sum()) for a, b in zip(spoilt.model.parameters(), clean.model.parameters(), strict=True)
    )
    # From the checkpoint on, without what has been left out by then.
    again = sum(number % EVERY - sum(number - number % EVERY <= each < number for each in BAD) for number in BAD)
    told = gather_objects(left_out)
    return [
        Claim(
            "batches left out that are no garbage, and garbage kept",
            "0",
            0,
            len(set(left_out) ^ set(BAD)),
            "batches",
            "derived",
            key=True,
        ),
        Claim(
            "steps whose loss differs from that of a run without garbage",
            "0",
            0,
            unlike,
            "steps",
            "derived",
            "compared",
            key=True,
        ),
        Claim(
            "elements of weights that differ from that run's",
            "0",
            0,
            elements,
            "elements",
            "derived",
            "compared",
            key=True,
        ),
        Claim(
            "steps taken, those that were done again among them",
            "N + Σ batches kept since the checkpoint",
            batches + again,
            spoilt.steps,
            "steps",
            "derived",
            key=True,
        ),
        Claim(
            "ranks that left out others than rank 0", "0", 0, sum(each != told[0] for each in told), "ranks", "derived"
        ),
        gives_up(),
    ]


def run(training: common.Training, batches: int) -> tuple[dict[int, float], list[int]]:
    return rewind.train(batches, training.step, training.state, training.load, Spikes(WINDOW), EVERY, len(BAD))


def gives_up() -> Claim:
    """The claim on a spike that is not the samples' fault: from batch 25 on every loss is high."""
    taken: list[int] = []

    def step(number: int) -> float:
        taken.append(number)
        return 9.0 if number >= 25 else 2.0 + number % 3 / 100

    try:
        rewind.train(40, step, lambda: None, lambda state: None, Spikes(WINDOW), EVERY, most=2)
        spikes = 0
    except rewind.SpikeAgain:
        spikes = sum(number >= 25 for number in taken)
    return Claim("spikes after which it gives up, where any batch spikes", "2 + 1", 3, spikes, "steps", "derived")


def unattended(world: World, batches: int) -> dict[int, float]:
    """Losses of the same run if nobody watches."""
    training = common.Training(world, BAD)
    return {number: training.step(number) for number in range(batches)}


def picture(clean: Mapping[int, float], rewound: Mapping[int, float], unattended: Mapping[int, float]) -> Figure:
    """Losses over the batches: with garbage, without it, and rewound."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), layout="constrained", facecolor="white")
    axes = figure.subplots()
    axes.plot(list(unattended), list(unattended.values()), color="#D55E00", lw=1, label="garbage trained on")
    axes.plot(list(clean), list(clean.values()), color="#BBBBBB", lw=4, label="no garbage in the data")
    axes.plot(list(rewound), list(rewound.values()), color="#000000", lw=1, label="rewound")
    axes.set_xlabel("batch")
    axes.set_ylabel("loss, nats per byte")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
