"""The lesson of `minitrain.checkpointing.interval`: 100,000 failures against Daly's formula, and his own figures."""

from __future__ import annotations

import math

from minitrain.checkpointing import interval
from minitrain.comm import World
from minitrain.costs import checkpointing as costs
from minitrain.lessons import Claim
from minitrain.lessons.pictures import checkpointing as pictures
from minitrain.lessons.rows import Rows

# M in minutes, and the interval that the paper gives for δ = 5 (figures 3 to 5).
PUBLISHED = {"figure 3": (24 * 60, 117.0), "figure 4": (6 * 60, 57.0), "figure 5": (15, 9.1)}
FACTORS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)
SIGMAS = 5  # one rank in 10⁶ would be further off, were the failures not the same in each run


def demo(
    world: World, failures: int = 100_000, mean: float = 60.0, saving: float = 1.5, restart: float = 4.0
) -> list[Claim]:
    """Lets a training fail very often at seven intervals; the table shows goodput, and the intervals of theory.

    Args:
        failures: Simulated at each interval, others on each rank.
        mean: M, minutes from failure to failure.
        saving: δ, minutes of a save.
        restart: R, minutes of a restart.
    """
    rows, daly = Rows("Daly 2006"), interval.daly(saving, mean)
    found = {}
    for factor in FACTORS:
        tau = factor * daly
        found[factor] = interval.simulate(tau, saving, restart, mean, failures, seed=world.rank)
        predicted = costs.goodput(tau, saving, restart, mean)
        off = SIGMAS * costs.goodput_noise(tau, saving, restart, mean, failures)
        what = "goodput through 100,000 failures, at 7 intervals from a quarter to four times Daly's"
        formula, case = "τ / (M e^{R/M} (e^{(τ+δ)/M} − 1))", f"τ = {factor} of Daly's"
        rows.add(what, formula, predicted, found[factor], "1", case=case, how="compared", absolute=off)
    by_tau = {factor * daly: goodput for factor, goodput in found.items()}
    world.draw = lambda: pictures.goodput(by_tau, mean, saving, restart)
    off = SIGMAS * costs.goodput_noise(costs.optimum(saving, mean), saving, restart, mean, failures)
    ahead = max(found.values()) - found[1.0]
    what = "by how much another of these intervals is better than Daly's"
    rows.add(what, "0", 0, ahead, "1", how="compared", relation="<=", absolute=off)
    for part in (0.001, 0.1, 1.5):
        s, case = math.sqrt(2 * part), f"δ = {part} M"
        right, bound = costs.optimum(part * mean, mean), costs.daly_error(part * mean, mean) * (1 + s)
        what, formula = (
            "Daly's interval, and the best of his model, δ from M/1000 to 1.5 M",
            "root of e^{(τ+δ)/M}(1 − τ/M) = 1",
        )
        rows.add(
            what, formula, right, interval.daly(part * mean, mean), "min", case=case, how="compared", absolute=bound
        )
        above, theory = interval.young(part * mean, mean) - right, costs.young_error(part * mean, mean)
        what, source = "Young's interval is longer than the best, by", "Young 1974; derived"
        rows.add(
            what, "M s²/3 (1 ± s/12 ± …)", theory, above, "min", source, case=case, how="compared", tolerance=s / 8
        )
    for case, (mtbf, tau) in PUBLISHED.items():
        what, formula = (
            "Daly's own intervals for δ = 5 min and M = 24 h, 6 h, 15 min",
            "√(2δM)(1 + √(δ/2M)/3 + (δ/2M)/9) − δ",
        )
        off = 0.5 if tau > 10 else 0.05
        rows.add(what, formula, interval.daly(5, mtbf), tau, "min", case=case, how="published", absolute=off)
    return rows.claims()
