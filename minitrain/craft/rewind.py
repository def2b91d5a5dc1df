"""Rewind: after a spike, go back to the last checkpoint, and leave the samples of that step out.

**Idea.** A spike is where bad samples met a sensitive state: the same samples do no harm at another time, and without
them the state gets through. So the run goes back to its last checkpoint and takes the same batches again, but for the
one that spiked. It then continues as if that batch had never been in the data.

**Source.** Chowdhery et al. 2022, "PaLM", §5.1: about 100 steps back, and 200 to 500 batches left out.
**Sent.** Nothing: all ranks see the same mean loss, and so all go back together.
**Cost.** The steps since the checkpoint are done again. A spike that comes back without the samples was not their
fault: after two rewinds to one checkpoint this gives up. Also called rollback, skipping data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from minitrain.craft.spikes import Spikes


class SpikeAgain(RuntimeError):
    """Too many rewinds to one checkpoint."""


def train(
    batches: int,
    step: Callable[[int], float],
    get_state: Callable[[], Any],
    set_state: Callable[[Any], None],
    spikes: Spikes,
    every: int = 10,
    most: int = 2,
) -> tuple[dict[int, float], list[int]]:
    """Train on batches 0, 1, …, with a checkpoint in memory before every `every`-th.

    `step` trains on the batch of a number, and returns the mean loss over all ranks.
    After `most` rewinds to one checkpoint it gives up. Returns the loss of each batch
    that was kept, and the numbers of those left out.
    """
    losses: dict[int, float] = {}
    left_out: list[int] = []
    number, begin, rewinds = 0, -1, 0
    kept: Any = None  # the checkpoint
    while number < batches:
        # Not again after a rewind, which begins with the state that it has just taken from there.
        if number % every == 0 and number != begin:
            # What is usual belongs to the state: steps done again are not to count twice.
            begin, rewinds = number, 0
            kept = copy.deepcopy((get_state(), spikes.usual, losses))
        if number not in left_out:
            loss = step(number)
            if spikes.seen(loss):
                rewinds += 1
                if rewinds > most:
                    raise SpikeAgain(f"batch {number}: loss {loss:g}, a spike after {most} rewinds to batch {begin}")
                left_out.append(number)
                # A copy, because there may be a second rewind to the same checkpoint.
                state, spikes.usual, losses = copy.deepcopy(kept)
                set_state(state)
                number = begin
                continue
            losses[number] = loss
        number += 1
    return losses, left_out


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
