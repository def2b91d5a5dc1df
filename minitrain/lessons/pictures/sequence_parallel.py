"""The pictures of the lessons on sequence parallelism."""

from __future__ import annotations

from collections.abc import Mapping

from minitrain.comm.pictures import TIME
from minitrain.costs.sequence_parallel import MASK, STATISTICS
from minitrain.lessons.pictures.memory_bar import LOOKS
from minitrain.lessons.pictures.panels import Figure, panels

# All of them are activations, yellow as in `pictures.memory_bar`: strong if tensor parallelism leaves them whole, pale
# if it divides them.
_WHOLE, _DIVIDED = LOOKS["activations"][0], "#FCF9C8"
_PARTS = {
    "norms": (_WHOLE, "xx", ("attention norm: its input", "MLP norm: its input", STATISTICS)),
    "inputs of attention and MLP": (
        _WHOLE,
        "//",
        ("query, key, value projections: their input", "up projection: its input"),
    ),
    "residual dropout masks": (_WHOLE, "++", ("attention dropout: its mask", "MLP dropout: its mask")),
    "Q, K, V": (_DIVIDED, "", ("QKᵀ: query and key", "attention over V: the values")),
    "scores": (
        _DIVIDED,
        "\\\\",
        (
            "softmax: its output",
            "softmax dropout: its mask",
            "attention over V: the dropout's output",
            MASK,
        ),
    ),
    "output, GELU, down": (
        _DIVIDED,
        "oo",
        ("output projection: its input", "GELU: its input", "down projection: its input"),
    ),
}


def kept(ways: Mapping[str, Mapping[str, float]]) -> Figure:
    """The bytes that a layer keeps in each way: first those that tensor parallelism leaves whole, then the rest."""
    figure, (axes,) = panels(8, 3.4)
    for place, terms in enumerate(ways.values()):
        left = 0.0
        for name, (color, hatch, members) in _PARTS.items():
            width = sum(terms.get(member, 0) for member in members) / 1e3
            label = name if place == 0 else None
            axes.barh(place, width, left=left, color=color, hatch=hatch, edgecolor="#666666", lw=0.5, label=label)
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
    waiting = [(1, 0.0, message, gather), (0, message, product, dx), (0, message + product, product, da)]
    waiting += [(1, message + 2 * product, message, scatter)]
    hiding = [
        (1, 0.0, message, gather),
        (0, 0.0, product, dx),
        (0, product, product, da),
        (1, product, message, scatter),
    ]
    for axes, name, kind, parts in zip(
        both, ("one after the other", "the full form"), ("exposed", "hidden"), (waiting, hiding), strict=True
    ):
        for row, begin, length, text in parts:
            color, hatch = TIME[f"communication, {kind}"] if row else TIME["compute"]
            axes.barh(row, length, 0.7, begin, color=color, hatch=hatch, edgecolor="white")
            under = {"facecolor": "white", "edgecolor": "none", "pad": 1}
            axes.text(begin + length / 2, row, text, ha="center", va="center", fontsize=8, bbox=under)
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="time", xticks=[])
    both[0].set_yticks((0, 1), ("computing", "sending"))
    both[0].invert_yaxis()
    return figure
