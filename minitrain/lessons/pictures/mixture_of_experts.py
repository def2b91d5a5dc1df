"""The pictures of the chapter mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from minitrain.lessons.pictures.panels import Axes, Figure, arrow, box, panels, write
from minitrain.mixture_of_experts.full.routing import Routing

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
PALE = ("#E69F00", "#56B4E9", "#F0E442")


def slots(routing: Routing, names: Sequence[str] | None = None) -> Figure:
    """Tokens at the left, experts with their slots at the right, and a line for each choice, thicker for more weight.

    A dashed line that ends in a cross is a choice that found no slot; a hollow token goes to no expert.

    Args:
        routing: A small one, of 8 tokens for example. Where there are groups, an expert's slots for each lie below
            each other.
        names: The labels next to the tokens; None: their numbers.
    """
    figure, (axes,) = panels(6.5, 0.6 + 0.21 * _rows(routing), bare=True)
    _slots(axes, routing, names)
    return figure


def routers(routings: Mapping[str, Routing], names: Sequence[str]) -> Figure:
    """As `slots`, for several routers side by side that route the same tokens."""
    highest = max(map(_rows, routings.values()))
    figure, each = panels(10.5, 0.9 + 0.21 * highest, len(routings), bare=True)
    for axes, (title, routing) in zip(each, routings.items(), strict=True):
        _slots(axes, routing, names)
        axes.set_title(title, fontsize=10)
    return figure


def _most(routing: Routing) -> int:
    """The slots of an expert in a group; without a capacity, as many as the fullest expert has tokens."""
    if routing.capacity is not None:
        return routing.capacity
    expert_of_group = routing.group() * routing.experts + routing.expert
    return max(int(torch.bincount(expert_of_group).max()), 1)


def _rows(routing: Routing) -> int:
    return max(routing.tokens, (_most(routing) * max(routing.groups, 1) + 1) * routing.experts)


def _slots(axes: Axes, routing: Routing, names: Sequence[str] | None) -> None:
    groups = max(routing.groups, 1)
    most, rows = _most(routing), _rows(routing)
    height = most * groups + 1
    left = torch.linspace(0, rows - 2, routing.tokens).tolist()
    tops = [expert * rows / routing.experts for expert in range(routing.experts)]
    for token, busy in enumerate((routing.experts_per_token() > 0).tolist()):
        axes.plot(0, left[token], "o", color="black", markerfacecolor="black" if busy else "white", markersize=7)
        axes.text(-0.04, left[token], names[token] if names else f"token {token}", ha="right", va="center")
    for expert, top in enumerate(tops):
        axes.text(1.14, top + (height - 2) / 2, f"expert {expert}", va="center")
        for row in range(most * groups if routing.capacity is not None else 0):
            _slot(axes, top + row, "white", "")
    lists = routing.token, routing.expert, routing.position_in_expert, routing.group(), routing.weight.detach().float()
    for token, expert, place, group, weight in zip(*(numbers.tolist() for numbers in lists), strict=True):
        row, color = tops[expert] + group * most + place, COLORS[expert % len(COLORS)]
        axes.plot([0, 1], [left[token], row], color=color, linewidth=0.5 + 3 * weight, zorder=1)
        _slot(axes, row, color, str(token))
    for token, expert in routing.dropped.tolist():
        row = tops[expert] + most * groups - 0.3
        axes.plot([0, 0.97], [left[token], row], "--", color="gray", linewidth=1, zorder=1)
        axes.plot(0.97, row, "x", color="black", markersize=7)
    axes.set(xlim=(-0.25, 1.4), ylim=(rows - 0.6, -0.7))


def _slot(axes: Axes, row: float, color: str, text: str) -> None:
    """One slot of an expert, with the number of the token that has it."""
    box(axes, 1.0, row - 0.42, 0.1, 0.84, (color, ""), ec="black", lw=0.8)
    ink = "black" if color in PALE else "white"
    write(axes, 1.05, row, text, color=ink, fontweight="bold")


def rows_sent(routes: Sequence[Sequence[int]]) -> Figure:
    """A table of the rows that go from each rank to each, darker for more; next to it the way back, its transpose."""
    n, most = len(routes), max(max(row) for row in routes) or 1
    figure, both = panels(2 * (1.6 + 0.55 * n), 1.3 + 0.45 * n, 2)
    ways = {"dispatch": (routes, "tokens", "experts")}
    ways["combine: the transpose"] = ([*zip(*routes, strict=True)], "experts", "tokens")
    for axes, (title, (counts, source_of, target_of)) in zip(both, ways.items(), strict=True):
        axes.imshow(counts, cmap="Greys", vmin=0, vmax=1.5 * most)
        for source, row in enumerate(counts):
            for to, count in enumerate(row):
                # What stays on its rank is no message.
                looks = {"color": "white" if count > 0.75 * most else "black", "alpha": 0.5 if source == to else 1}
                write(axes, to, source, f"({count})" if source == to else f"{count}", 10, **looks)
        names = [f"rank {rank}" for rank in range(n)]
        axes.set_xticks(range(n))
        axes.set_yticks(range(n), names)
        axes.set(xlabel=f"to the rank of the {target_of}", ylabel=f"from the rank of the {source_of}")
        axes.set_title(title, fontsize=10)
    return figure


def expert_groups(ranks: int, ep: int, experts: int) -> Figure:
    """A grid of ranks: a row exchanges tokens and holds every expert once, a column holds the same experts."""
    from minitrain.comm.pictures import RANKS

    figure, (axes,) = panels(6.4, 0.8 + 0.85 * ranks / ep, bare=True)
    for rank in range(ranks):
        row, column = divmod(rank, ep)
        held = ", ".join(str(expert) for expert in range(experts * column // ep, experts * (column + 1) // ep))
        look = RANKS[rank][0], ""
        box(axes, column, row, 0.72, 0.6, look, f"rank {rank}\nexperts {held}", 9, alpha=0.25, ec="black")
    for row in range(ranks // ep):
        for column in range(ep - 1):
            arrow(axes, (column + 0.72, row + 0.3), (column + 1, row + 0.3), "<|-|>")
            axes.text(column + 0.86, row + 0.24, "tokens", ha="center", va="bottom", fontsize=8)
    for column in range(ep):
        for row in range(ranks // ep - 1):
            arrow(axes, (column + 0.36, row + 0.6), (column + 0.36, row + 1), "<|-|>")
            axes.text(column + 0.39, row + 0.8, "sum of experts' gradients", va="center", fontsize=8)
    axes.set(xlim=(-0.05, ep + 0.1), ylim=(ranks / ep - 0.3, -0.1))
    return figure


def trainings(entropies: Mapping[float, Tensor], experts: int, dropped: Mapping[float, tuple[float, float]]) -> Figure:
    """Left: how even the load is over the steps. Right: what is dropped for each capacity factor.

    Args:
        entropies: α -> the entropy of each step's load.
        experts: Their number.
        dropped: Capacity factor -> the part that is dropped of text, and of even choices.
    """
    figure, (left, right) = panels(9, 3.6, 2)
    for (factor, entropy), style in zip(entropies.items(), ("-", "--"), strict=True):
        left.plot(entropy.tolist(), style, color="#333333", label=f"α = {factor:g}")
    left.axhline(math.log(experts), color="gray", linewidth=0.8, linestyle=":")
    left.annotate("ln E: all experts alike", (0, math.log(experts)), xytext=(0, 3), textcoords="offset points")
    left.set(xlabel="step", ylabel="entropy of the load, nats", ylim=(0, 1.15 * math.log(experts)))
    text, even = ([100 * part for part in parts] for parts in zip(*dropped.values(), strict=True))
    right.plot(list(dropped), text, "o-", color="#333333", label="text, trained router")
    right.plot(list(dropped), even, "s--", color="#888888", label="even choices, by the formula")
    right.set(xlabel="capacity factor", ylabel="tokens dropped, %", ylim=(0, 100))
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure


def biases(loads: Sequence[Sequence[int]], values: Sequence[Sequence[float]]) -> Figure:
    """Two panels: the load of each expert in each step, and its bias after the step."""
    figure, each = panels(9, 3, 2)
    for axes, of_steps, name in zip(each, (loads, values), ("load, tokens", "bias after the step"), strict=True):
        for expert, line in zip(range(len(of_steps[0])), ("-", "--", "-.", ":"), strict=False):
            own = [of_step[expert] for of_step in of_steps]
            axes.plot(range(1, len(own) + 1), own, line, color=COLORS[expert], lw=2, label=f"expert {expert}")
        axes.set(xlabel="step", ylabel=name)
    each[0].legend(frameon=False, fontsize=8)
    return figure
