"""The pictures of the chapter parameter server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minitrain.comm.pictures import RANKS
from minitrain.lessons.pictures.panels import Figure, panels

if TYPE_CHECKING:
    from minitrain.lessons.parameter_server.runs import Trace


def links(points: list[tuple[int, int, float, float]]) -> Figure:
    """Bytes through the busiest link over the number of workers, of servers and of a ring; dots were counted.

    Args:
        points: Workers, servers, and what the busiest server and the busiest rank of the ring carried, in S.
    """
    figure, (axes,) = panels(8, 4.2)
    workers = list(range(2, 17))
    styles = {1: ("#D55E00", "-"), 2: ("#E69F00", "--"), 4: ("#CC79A7", "-."), 8: ("#56B4E9", ":")}
    for servers, (color, line) in styles.items():
        label = f"{servers} server{'s' * (servers > 1)}"
        axes.plot(workers, [2 * n / servers for n in workers], line, color=color, label=label)
    axes.plot(workers, [4 * (n - 1) / n for n in workers], color="#009E73", linewidth=2.5, label="ring")
    counts = [point[0] for point in points]
    axes.plot(counts, [point[2] for point in points], "ks", markersize=6, label="counted, servers")
    axes.plot(counts, [point[3] for point in points], "k^", markersize=6, label="counted, ring")
    for n, servers, height, _ in points:
        axes.annotate(f"k = {servers}", (n, height), textcoords="offset points", xytext=(8, -10), fontsize=8)
    axes.set(xlabel="workers n", ylabel="bytes through the busiest link, in S", title="Who is the bottleneck")
    axes.set(ylim=(0, 16), xlim=(1.5, 16))
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def clocks(updates: Sequence[tuple[float, int]], seconds: float, bound: int) -> Figure:
    """The clock of each worker over time, and the band in which it may begin a step: up to `bound` above the slowest.

    Args:
        updates: The moment and the worker of each update.
        seconds: Where the picture ends.
        bound: s.
    """
    figure, (axes,) = panels(8, 3)
    workers, moments = sorted({worker for _, worker in updates}), sorted({0.0, seconds, *(time for time, _ in updates)})
    at = {each: [sum(who == each and time <= now for time, who in updates) for now in moments] for each in workers}
    slowest = [min(each) for each in zip(*at.values(), strict=True)]
    axes.fill_between(moments, slowest, [least + bound for least in slowest], step="post", color="#EEEEEE")
    for worker, clock in at.items():
        # Side by side, where clocks are equal.
        shifted = [value + 0.08 * (worker - 2) for value in clock]
        axes.step(moments, shifted, where="post", color=RANKS[worker][0], lw=2, label=f"worker {worker}")
    axes.set(xlim=(0, seconds), xlabel="virtual seconds", ylabel="clock: steps finished")
    figure.legend(frameon=False, loc="outside right center")
    return figure


def staleness(traces: Mapping[str, Trace], seconds: float) -> Figure:
    """Loss against virtual time, and how stale gradients were, for each bound."""
    figure, (left, right) = panels(9, 3.6, 2)
    looks = [("#0072B2", "-", ""), ("#D55E00", "--", "///"), ("#009E73", ":", "||")]
    most = max(update.staleness for trace in traces.values() for update in trace.updates)
    for place, ((name, trace), (color, line, hatch)) in enumerate(zip(traces.items(), looks, strict=False)):
        points = [(moment, value) for moment, value in trace.losses if moment <= seconds]
        left.step(*zip(*points, strict=True), where="post", label=name, color=color, linestyle=line)
        found = [update.staleness for update in trace.updates]
        shares = [found.count(value) / len(found) for value in range(most + 1)]
        middles = [value + 0.27 * (place - (len(traces) - 1) / 2) for value in range(most + 1)]
        right.bar(middles, shares, 0.27, label=name, color=color, hatch=hatch, edgecolor="white")
    left.set(xlabel="virtual seconds", ylabel="loss", yscale="log", title="One slow worker: loss against time")
    right.set(xlabel="updates between pull and push", ylabel="share of gradients", title="Staleness")
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure
