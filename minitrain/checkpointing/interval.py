"""The interval between checkpoints: often enough to lose little by a failure, seldom enough to save little.

**Idea.** With a failure every M seconds on average, about τ/2 seconds of work are lost per failure, and saves of δ
seconds take δ/τ of the time. The sum of both is smallest near τ = √(2δM); Daly's series comes closer.

**Source.** Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order
estimate of the optimum checkpoint interval", with the model that `simulate` follows.
**Cost.** As in Daly, τ is work between two saves, without the save's own δ. A failure is followed by a restart of R
seconds, and may come during work, a save or a restart. Goodput is work that was kept, per second.
"""

from __future__ import annotations

import math
import random


def young(saving: float, mean: float) -> float:
    """τ = √(2δM): work between two saves, in the unit of δ and M."""
    assert saving > 0 and mean > 0, f"invalid: {saving=}, {mean=}"
    return math.sqrt(2 * saving * mean)


def daly(saving: float, mean: float) -> float:
    """τ of the higher order: √(2δM) (1 + √(δ/2M)/3 + (δ/2M)/9) − δ, or M where a save takes 2M and more."""
    first = young(saving, mean)
    if saving >= 2 * mean:
        return mean
    part = saving / (2 * mean)
    # Minus δ, as failures hit the save, too.
    return first * (1 + math.sqrt(part) / 3 + part / 9) - saving


def simulate(interval: float, saving: float, restart: float, mean: float, failures: int, seed: int = 0) -> float:
    """Goodput of a training that lives through so many failures, work and save by work and save.

    Args:
        interval: τ, seconds of work between two saves.
        saving: δ, seconds of a save.
        restart: R, seconds until work goes on after a failure.
        mean: M, mean seconds from failure to failure; their times are exponentially distributed.
    """
    assert interval > 0 and failures >= 1, f"invalid: {interval=}, {failures=}"
    draw = random.Random(seed)
    kept = now = 0.0
    for _ in range(failures):
        failure = now + draw.expovariate(1 / mean)
        # A failure in the restart begins it again.
        now += restart
        while now + interval + saving <= failure:
            # Work counts once it is saved. What comes after the last save is lost.
            now += interval + saving
            kept += interval
        now = failure
    return kept / now


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
