"""The pictures of the chapter mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from minitrain.lessons.pictures.panels import Axes, Figure, panels
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
    groups = max(routing.groups, 1)
    expert_of_group = routing.group() * routing.experts + routing.expert
    most = max(int(torch.bincount(expert_of_group).max()), 1) if routing.capacity is None else routing.capacity
    height = most * groups + 1
    rows = max(routing.tokens, height * routing.experts)
    figure, (axes,) = panels(6.5, 0.6 + 0.21 * rows)
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
    axes.axis("off")
    return figure


def _slot(axes: Axes, row: float, color: str, text: str) -> None:
    """One slot of an expert, with the number of the token that has it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((1.0, row - 0.42), 0.1, 0.84, facecolor=color, edgecolor="black", linewidth=0.8))
    ink = "black" if color in PALE else "white"
    axes.text(1.05, row, text, ha="center", va="center", fontsize=8, color=ink, fontweight="bold")


def load(wanted: Sequence[int], got: Sequence[int]) -> Figure:
    """Tokens that each expert got, and those that found no slot."""
    figure, (axes,) = panels(6, 3)
    numbers = range(len(got))
    axes.bar(numbers, wanted, fill=False, hatch="///", edgecolor="gray", label="chose it and found no place")
    axes.bar(numbers, got, edgecolor="black", label="went through it")
    axes.set(xlabel="expert", ylabel="tokens", xticks=numbers)
    axes.legend(frameon=False)
    return figure


def rows_sent(routes: Sequence[Sequence[int]]) -> Figure:
    """A table of the rows that go from each rank to each, darker for more."""
    from matplotlib.figure import Figure

    n, most = len(routes), max(max(row) for row in routes) or 1
    figure = Figure(figsize=(1.5 + 0.8 * n, 1.2 + 0.6 * n), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(routes, cmap="Blues", vmin=0, vmax=most)
    for source, row in enumerate(routes):
        for to, count in enumerate(row):
            color = "white" if count > most / 2 else "black"
            axes.text(to, source, f"{count}", ha="center", va="center", color=color)
    axes.set(xticks=range(n), yticks=range(n), xlabel="experts of rank", ylabel="tokens of rank")
    axes.set_title("rows from each rank to each; on the diagonal they stay", fontsize=10)
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
        left.plot(entropy.tolist(), style, label=f"α = {factor:g}")
    left.axhline(math.log(experts), color="gray", linewidth=0.8, linestyle=":")
    left.annotate("ln E: all experts alike", (0, math.log(experts)), xytext=(0, 3), textcoords="offset points")
    left.set(xlabel="step", ylabel="entropy of the load, nats", ylim=(0, 1.15 * math.log(experts)))
    right.plot(list(dropped), [100 * text for text, _ in dropped.values()], "o-", label="text, trained router")
    right.plot(list(dropped), [100 * even for _, even in dropped.values()], "s--", label="even choices, by the formula")
    right.set(xlabel="capacity factor", ylabel="tokens dropped, %", ylim=(0, 100))
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure


def balance(curves: Mapping[str, Sequence[float]]) -> Figure:
    """The busiest expert's load over the mean, a curve for each router; the mean of ten steps at each point."""
    figure, (axes,) = panels(7, 3.6)
    for color, (name, values) in zip(COLORS, curves.items(), strict=False):
        parts = [values[max(0, end - 10) : end] for end in range(1, len(values) + 1)]
        smooth = [sum(part) / len(part) for part in parts]
        axes.plot(range(1, len(values) + 1), smooth, color=color, linewidth=1.5, label=name)
    axes.axhline(1, color="gray", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", ylabel="busiest expert's load / mean load", ylim=(0.8, None))
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
