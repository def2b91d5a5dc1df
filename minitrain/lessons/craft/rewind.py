"""The lesson of `minitrain.craft.rewind`: after it a run is the one that never had the spoilt samples."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.craft import rewind
from minitrain.craft.spikes import Spikes
from minitrain.lessons.craft import common
from minitrain.lessons.pictures import craft as pictures
from minitrain.lessons.rows import Claim, Rows

BATCHES, EVERY, WINDOW = 90, 10, 32
BAD = {56: "garbage", 58: "garbage", 77: "garbage"}  # late, when losses have settled; two under one checkpoint


def demo(world: World) -> list[Claim]:
    """Rewinds a training of a small GPT with garbage in it; the picture: its loss beside that of a clean run."""
    rows, spoilt, clean, careless = Rows(), *(common.Training(world, bad) for bad in (BAD, {}, BAD))
    state = spoilt.step, spoilt.state, spoilt.load
    with world.timed(f"{BATCHES} batches with rewinds"):
        losses, left_out = rewind.train(BATCHES, *state, Spikes(WINDOW), EVERY, len(BAD))
    expected = {number: clean.step(number) for number in range(BATCHES) if number not in BAD}
    unattended = {number: careless.step(number) for number in range(BATCHES)}
    world.figure(lambda: pictures.rewind(expected, losses, unattended))
    what = "batches left out that are no garbage, and garbage kept"
    rows.add(what, "0", 0, len(set(left_out) ^ set(BAD)), "batches")
    what = "steps whose loss differs from that of a run without garbage"
    unlike = sum(losses.get(number) != expected.get(number) for number in losses | expected)
    rows.add(what, "0", 0, unlike, "steps", how="compared")
    what = "elements of weights that differ from that run's"
    rows.equal(what, [*spoilt.model.parameters()], [*clean.model.parameters()])
    # From the checkpoint on, without what has been left out by then.
    again = sum(number % EVERY - sum(number - number % EVERY <= each < number for each in BAD) for number in BAD)
    what, formula = "steps taken, those that were done again among them", "N + Σ batches kept since the checkpoint"
    rows.add(what, formula, BATCHES + again, spoilt.steps, "steps")
    return rows.claims()
