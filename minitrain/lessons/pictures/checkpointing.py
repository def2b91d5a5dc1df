"""The picture of the chapter on checkpoints: goodput over the time between two saves."""

from __future__ import annotations

from minitrain.checkpointing import interval
from minitrain.costs import checkpointing as costs
from minitrain.lessons.pictures.panels import Figure, panels


def goodput(found: dict[float, float], mean: float, saving: float, restart: float) -> Figure:
    """Goodput over the interval: the formula as a line, the simulation as points."""
    figure, (axes,) = panels(7, 3.4)
    low, high = min(found), max(found)
    taus = [low * (high / low) ** (i / 99) for i in range(100)]
    axes.plot(taus, [costs.goodput(tau, saving, restart, mean) for tau in taus], color="#0072B2", label="formula")
    axes.plot(list(found), list(found.values()), "o", color="#D55E00", label="simulated")
    axes.axvline(interval.daly(saving, mean), color="#999999", linestyle="--", label="Daly's interval")
    axes.set(xscale="log", xlabel="minutes of work between two saves", ylabel="goodput")
    axes.legend(frameon=False)
    return figure
