"""The lesson of `minitrain.checkpointing.interval`: 100,000 failures against Daly's formula, and his own figures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.checkpointing import interval
from minitrain.comm import World
from minitrain.costs import checkpointing as costs
from minitrain.lessons.claims import Claim, fold

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DALY = "Daly 2006"
# M, R and δ in minutes, and the interval that the paper gives (figures 3 to 5).
PUBLISHED = {"figure 3": (24 * 60, 10, 5, 117.0), "figure 4": (6 * 60, 10, 5, 57.0), "figure 5": (15, 10, 5, 9.1)}
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
    best = costs.optimum(saving, mean)
    found, cases = {}, {}
    for factor in FACTORS:
        tau = factor * interval.daly(saving, mean)
        found[tau] = interval.simulate(tau, saving, restart, mean, failures, seed=world.rank)
        predicted = costs.goodput(tau, saving, restart, mean)
        noise = costs.goodput_noise(tau, saving, restart, mean, failures)
        formula, off = "τ / (M e^{R/M} (e^{(τ+δ)/M} − 1))", SIGMAS * noise
        cases[f"τ = {factor} of Daly's"] = Claim(
            "", formula, predicted, found[tau], "1", DALY, "compared", absolute=off
        )
    world.draw = lambda: draw(found, mean, saving, restart)
    ahead = max(found.values()) - found[interval.daly(saving, mean)]
    noise = costs.goodput_noise(best, saving, restart, mean, failures)
    lost = costs.goodput(best, saving, restart, mean) - costs.goodput(0.5 * best, saving, restart, mean)
    measured = found[interval.daly(saving, mean)] - found[0.5 * interval.daly(saving, mean)]
    series, first = {}, {}
    for part in (0.001, 0.01, 0.1, 0.5, 1.5):
        s = math.sqrt(2 * part)
        right = costs.optimum(part * mean, mean)
        name = f"δ = {part} M"
        bound = costs.daly_error(part * mean, mean) * (1 + s)
        series[name] = Claim("", "root of e^{(τ+δ)/M}(1 − τ/M) = 1", right, interval.daly(part * mean, mean), "min",
                             DALY, "compared", absolute=bound)  # fmt: skip
        above = interval.young(part * mean, mean) - right
        first[name] = Claim("", "M s²/3 (1 ± s/12 ± …)", costs.young_error(part * mean, mean), above, "min",
                            "Young 1974; derived", "compared", tolerance=s / 8)  # fmt: skip
    figures = {
        name: Claim("", "√(2δM)(1 + √(δ/2M)/3 + (δ/2M)/9) − δ", interval.daly(saved, mtbf), tau, "min",
                    DALY, "published", absolute=0.5 if tau > 10 else 0.05)
        for name, (mtbf, _, saved, tau) in PUBLISHED.items()
    }  # fmt: skip
    with world.timed(f"{failures:,} failures"):
        interval.simulate(interval.daly(saving, mean), saving, restart, mean, failures)
    return [
        fold("goodput through 100,000 failures, at 7 intervals from a quarter to four times Daly's", cases, key=True),
        Claim("by how much another of these intervals is better than Daly's", "0", 0, ahead, "1", DALY, "compared",
              "<=", absolute=SIGMAS * noise, key=True),
        Claim("goodput lost at half of the best interval", "g(τ*) − g(τ*/2)", lost, measured, "1", DALY, "compared",
              absolute=SIGMAS * 2 * noise),
        fold("Daly's interval, and the best of his model, δ from M/1000 to 1.5 M", series, key=True),
        fold("Young's interval is longer than the best, by", first, key=True),
        fold("Daly's own intervals for δ = 5 min and M = 24 h, 6 h, 15 min", figures, key=True),
    ]  # fmt: skip


def draw(found: dict[float, float], mean: float, saving: float, restart: float) -> Figure:
    """Goodput over the interval: the formula as a line, the simulation as points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.add_subplot()
    low, high = min(found), max(found)
    taus = [low * (high / low) ** (i / 99) for i in range(100)]
    axes.plot(taus, [costs.goodput(tau, saving, restart, mean) for tau in taus], color="#0072B2", label="formula")
    axes.plot(list(found), list(found.values()), "o", color="#D55E00", label="simulated")
    axes.axvline(interval.daly(saving, mean), color="#999999", linestyle="--", label="Daly's interval")
    axes.set_xscale("log")
    axes.set_xlabel("minutes of work between two saves")
    axes.set_ylabel("goodput")
    axes.legend(frameon=False)
    return figure
