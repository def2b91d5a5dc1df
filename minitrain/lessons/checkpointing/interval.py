"""The lesson of `minitrain.checkpointing.interval`: 100,000 failures against Daly's formula."""

from __future__ import annotations

import math

from minitrain.checkpointing import interval
from minitrain.comm import World
from minitrain.costs import checkpointing as costs
from minitrain.lessons.rows import Claim, Rows

FACTORS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
SIGMAS = 5  # one rank in 10⁶ would be further off, were the failures not the same in each run

FAILURES = 100_000  # simulated at each interval, others on each rank


def demo(world: World) -> list[Claim]:
    """Lets a training fail very often at seven intervals; the table shows goodput, and the intervals of theory."""
    mean, saving, restart = 60.0, 1.5, 4.0  # M, δ and R, minutes
    rows, daly = Rows("Daly 2006"), interval.daly(saving, mean)
    for factor in FACTORS:
        tau = factor * daly
        found = interval.simulate(tau, saving, restart, mean, FAILURES, seed=world.rank)
        predicted = costs.goodput(tau, saving, restart, mean)
        off = SIGMAS * costs.goodput_noise(tau, saving, restart, mean, FAILURES)
        what = f"goodput through {FAILURES:,} failures, at 7 intervals from a quarter to four times Daly's"
        formula, case = "τ / (M e^{R/M} (e^{(τ+δ)/M} − 1))", f"τ = {factor} of Daly's"
        rows.add(what, formula, predicted, found, "1", case=case, how="compared", absolute=off)
    for part in (0.001, 0.1, 1.5):
        s, saving, more = math.sqrt(2 * part), part * mean, {"case": f"δ = {part} M", "how": "compared"}
        best, bound = costs.optimum(saving, mean), costs.daly_error(saving, mean) * (1 + s)
        formula = "(τ+δ)/M + ln(1−τ/M) = 0"
        what = "Daly's interval next to the best of his model, δ from M/1000 to 1.5 M"
        rows.add(what, formula, best, interval.daly(saving, mean), "min", absolute=bound, **more)
        above, theory = interval.young(saving, mean) - best, costs.young_error(saving, mean)
        what, source = "minutes by which Young's interval is longer than the best", "Young 1974; derived"
        rows.add(what, "M s²/3 (1 ± s/12 ± …)", theory, above, "min", source, tolerance=s / 8, **more)
    return rows.claims()
