"""The pictures of the lessons on sequence parallelism."""

from __future__ import annotations

from collections.abc import Mapping

from minitrain.comm.pictures import TIME
from minitrain.costs.sequence_parallel import MASK, STATISTICS
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.pictures.panels import Figure, bar, name_rows, panels

# All of them are activations, yellow as in `pictures.memory_bar`: the first three, which tensor parallelism leaves
# whole, are strong, and those that it divides are pale.
_WHOLE, _DIVIDED = LOOKS["activations"][0], "#FCF9C8"
_PARTS = {
    "norms": ("xx", ("attention norm: its input", "MLP norm: its input", STATISTICS)),
    "inputs of attention and MLP": ("//", ("query, key, value projections: their input", "up projection: its input")),
    "residual dropout masks": ("++", ("attention dropout: its mask", "MLP dropout: its mask")),
    "Q, K, V": ("", ("QKᵀ: query and key", "attention over V: the values")),
    "scores": (
        "\\\\",
        ("softmax: its output", "softmax dropout: its mask", "attention over V: the dropout's output", MASK),
    ),
    "output, GELU, down": ("oo", ("output projection: its input", "GELU: its input", "down projection: its input")),
}


def kept(ways: Mapping[str, Mapping[str, float]]) -> Figure:
    """The bytes that a layer keeps in each way: first those that tensor parallelism leaves whole, then the rest."""
    figure, (axes,) = panels(8, 3.4)
    for place, terms in enumerate(ways.values()):
        left = 0.0
        for number, (name, (hatch, members)) in enumerate(_PARTS.items()):
            width = sum(terms.get(member, 0) for member in members) / 1e3
            label = name if place == 0 else None
            look = _WHOLE if number < 3 else _DIVIDED, hatch
            bar(axes, place, left, width, look, height=0.8, edgecolor="#666666", lw=0.5, label=label)
            left += width
        axes.text(left, place, f" {left:.1f}", va="center")
    axes.set(yticks=range(len(ways)), yticklabels=list(ways), xlabel="kB that a layer keeps for backward, on each rank")
    axes.invert_yaxis()
    axes.margins(x=0.08)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def second_gather(product: float = 1.0, message: float = 0.7) -> Figure:
    """Backward of a product that is cut by columns: its messages after one another, and behind its two products."""
    figure, both = panels(9, 1.9, 2, sharey=True, sharex=True)
    dx, da, gather, scatter = "∂X = ∂Y Aᵀ", "∂A = Xᵀ ∂Y", "gather X", "scatter ∂X"
    ways = ("one after the other", "exposed", message), ("the full form", "hidden", 0.0)
    for axes, (name, kind, first) in zip(both, ways, strict=True):
        last = first + (2 * product if first else product)
        parts = [(1, 0.0, message, gather), (0, first, product, dx), (0, first + product, product, da)]
        for row, begin, length, text in [*parts, (1, last, message, scatter)]:
            look = TIME[f"communication, {kind}"] if row else TIME["compute"]
            bar(axes, row, begin, length, look, text, 8, 1)
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="time", xticks=[])
    name_rows(both[0], ("computing", "sending"))
    return figure
