"""The pictures of the lessons of collectives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minitrain.comm import Timeline
from minitrain.comm.pictures import RANKS
from minitrain.lessons.pictures.panels import Axes, Figure, arrow, bar, box, panels

Chunk = tuple[Iterable[int], int]
"""The ranks whose values are in it, and its number."""


def six() -> Figure:
    """The six collectives on four ranks, before and after."""
    every = range(4)
    own: list[list[Chunk]] = [[([rank], chunk) for chunk in every] for rank in every]
    summed: list[Chunk] = [(every, chunk) for chunk in every]
    empty: list[Chunk] = [((), 0)] * 4
    diagonal = [[each if chunk == rank else ((), 0) for chunk, each in enumerate(own[rank])] for rank in every]
    scattered = [[each if chunk == rank else ((), 0) for chunk, each in enumerate(summed)] for rank in every]
    sides = {
        "broadcast": ([own[0], empty, empty, empty], [own[0]] * 4),
        "reduce": (own, [summed, empty, empty, empty]),
        "all-reduce": (own, [summed] * 4),
        "reduce-scatter": (own, scattered),
        "all-gather": (diagonal, [[own[rank][rank] for rank in every]] * 4),
        "all-to-all": (own, [[own[source][rank] for source in every] for rank in every]),
    }
    figure, six_axes = panels(9.5, 3.7, 3, rows=2, bare=True)
    for axes, (name, states) in zip(six_axes, sides.items(), strict=True):
        _states(axes, states, name)
    return figure


def star_and_ring() -> Figure:
    """Who sends to whom when four ranks add through rank 0, and around a ring; an arrow has the sender's color."""
    figure, (left, right) = panels(8, 2.8, 2)
    star = [(0.0, 0.0), (-1.4, 0.85), (0.0, 1.0), (1.4, 0.85)]
    circle = [(-0.8, 0.95), (0.8, 0.95), (0.8, 0.0), (-0.8, 0.0)]
    sums_in = [(rank, 0, "-", 0.2) for rank in (1, 2, 3)]
    sums_out = [(0, rank, "--", 0.2) for rank in (1, 2, 3)]
    around = [(rank, (rank + 1) % 4, "-", -0.12) for rank in range(4)]
    for axes, places, title, arrows in (
        (left, star, "through one rank", sums_in + sums_out),
        (right, circle, "around a ring", around),
    ):
        for source, to, style, curve in arrows:
            looks = {"arrowstyle": "-|>", "lw": 1.6, "shrinkA": 14, "shrinkB": 14, "ls": style}
            looks |= {"color": RANKS[source][0], "connectionstyle": f"arc3,rad={curve}"}
            axes.annotate("", places[to], places[source], arrowprops=looks)
        for rank, place in enumerate(places):
            circled = {"boxstyle": "circle", "fc": "white"}
            axes.text(*place, str(rank), ha="center", va="center", bbox=circled)
        axes.set(xlim=(-1.9, 1.9), ylim=(-0.3, 1.3), title=title)
        axes.axis("off")
    left.text(0.35, -0.2, "solid: tensors in\ndashed: sums out", fontsize=8)
    return figure


def halving() -> Figure:
    """Recursive halving on four ranks: what each holds at the start and after each of two steps."""
    figure, (axes,) = panels(9.5, 2.3, bare=True)
    states: list[list[list[Chunk]]] = []
    for width in (4, 2, 1):  # chunks in which a rank continues
        with_mine = [[other for other in range(4) if (other ^ rank) % width == 0] for rank in range(4)]
        own = [(rank, chunk, chunk // width == rank // width) for rank in range(4) for chunk in range(4)]
        chunks: list[Chunk] = [(with_mine[rank] if has else (), chunk) for rank, chunk, has in own]
        states.append([chunks[4 * rank : 4 * rank + 4] for rank in range(4)])
    _states(axes, states, "")
    return figure


def _states(axes: Axes, states: Sequence[Sequence[Sequence[Chunk]]], title: str) -> None:
    """Four ranks' chunks in several states, left to right: a stripe in the color of each rank whose values are in."""
    for number, rows in enumerate(states):
        for rank, row in enumerate(rows):
            for slot, (sources, chunk) in enumerate(row):
                x, y, inside = 5.6 * number + slot, 3.3 - 1.1 * rank, list(sources)
                if not inside:
                    box(axes, x, y, 1, 1, ("white", ""), ec="#BBBBBB", ls=":")
                    continue
                for stripe, source in enumerate(inside):
                    height = 1 / len(inside)
                    box(axes, x, y + stripe * height, 1, height, (RANKS[source][0], ""), ec="none")
                box(axes, x, y, 1, 1, ("none", ""), ec="#333333", lw=0.8)
                name = "Σ" if len(inside) == 4 else "".join("abcd"[source] for source in inside)
                paper = {"boxstyle": "round,pad=0.12", "fc": "white", "ec": "none"}
                axes.text(x + 0.5, y + 0.5, f"{name}{chunk}", ha="center", va="center", fontsize=8, bbox=paper)
        if number:
            look = {"color": "#333333", "lw": 1.6, "shrinkA": 2, "shrinkB": 2}
            arrow(axes, (5.6 * number - 1.45, 2.15), (5.6 * number - 0.15, 2.15), **look)
    for rank in range(4):
        axes.text(-0.2, 3.8 - 1.1 * rank, f"rank {rank}", ha="right", va="center", fontsize=8)
    axes.set_title(title, fontsize=11, weight="bold")
    axes.set(xlim=(-1.9, 5.6 * len(states) - 1.5), ylim=(-0.1, 4.45), aspect="equal")


def side_by_side(timelines: dict[str, Timeline]) -> Figure:
    """A picture of several algorithms on one time scale, one below the other: which rank sends when."""
    sent = {name: [s for s in line.spans if s.kind == "send"] for name, line in timelines.items()}
    ranks = 1 + max((span.rank for spans in sent.values() for span in spans), default=0)
    end = max((span.end for spans in sent.values() for span in spans), default=1.0)
    figure, all_axes = panels(9, 0.8 + len(sent) * (0.7 + 0.28 * ranks), rows=len(sent))
    for axes, (name, spans) in zip(all_axes, sent.items(), strict=True):
        for span in spans:
            wide = span.end - span.start > 0.012 * end * (1 + len(span.label))
            start, length, label = 1e6 * span.start, 1e6 * (span.end - span.start), span.label if wide else ""
            bar(axes, span.rank, start, length, ("#009E73", "||"), label, 7, 0.8, height=0.8)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set(xlim=(0, 1e6 * end * 1.01), ylim=(ranks - 0.4, -0.6))
        done = max((span.end for span in spans), default=0.0)
        axes.set_title(f"{name}: {1e6 * done:.0f} virtual µs", loc="left", fontsize=10)
    axes.set_xlabel("virtual µs; a bar is a message on its way out")
    return figure
