"""Successive halving: try all candidates for a few steps, keep the best part of them, and try these for longer.

**Idea.** A cost model may be wrong, a short run is not, but it costs GPU time, and a very short one is noisy. So a
budget of steps is divided evenly over rounds. In each round all candidates that are left share its part, and only the
best 1/η go on: bad layouts are given up after a few steps, and the last ones are compared at length.

**Source.** Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization", figure
1, with η in place of 2 as in Li et al. 2018, "Hyperband". ATorch's `auto_accelerate` chooses among parallel layouts by
such short runs ("dry runs"), with Bayesian optimization (a model of the runs so far says which to try next).
**Sent.** What the trials send. All ranks must rank the candidates alike, so `run` has to give all of them one number.
**Cost.** At most `budget` steps, and a rebuilt model for each trial. Also called sequential halving, racing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Candidate = TypeVar("Candidate")


def successive_halving(
    candidates: Sequence[Candidate],
    run: Callable[[Candidate, int], float],
    budget: int,
    eta: int = 2,
) -> tuple[Candidate, list[tuple[int, int]]]:
    """The candidate that comes out best, and each round's number of candidates and steps of each.

    Args:
        candidates: What there is to choose from, such as layouts.
        run: Tries a candidate for so many steps; the smaller the number that it returns, the better.
        budget: Steps in all.
        eta: η; 1/η of the candidates, rounded up, go on to the next round.
    """
    assert candidates, "there are no candidates; give at least one"
    assert eta >= 2, f"{eta=} must be at least 2, so that each round leaves fewer candidates"
    left, counts = len(candidates), []
    # Rounds until one is left; with a single candidate there is nothing to try.
    while left > 1:
        counts.append(left)
        left = -(-left // eta)
    # The first round has the most candidates, and each needs a step.
    least = len(candidates) * len(counts)
    assert budget >= least, f"{budget=} is too small for {len(candidates)} candidates; use at least {least} steps"
    survivors, rounds = list(candidates), []
    # Each round has an equal part of the budget, so the fewer are left, the longer each is tried.
    for count in counts:
        steps = budget // len(counts) // count
        # Sorting keeps the order of equals, so ranks that see the same numbers keep the same candidates.
        score = {index: run(candidate, steps) for index, candidate in enumerate(survivors)}
        ranked = sorted(score, key=score.__getitem__)
        # All others are given up, whatever they might have become.
        survivors = [survivors[index] for index in ranked[: -(-count // eta)]]
        rounds.append((count, steps))
    return survivors[0], rounds


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
