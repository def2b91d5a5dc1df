"""The picture of the lessons on sequence parallelism."""

from __future__ import annotations

from collections.abc import Mapping

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
