"""A picture of composed training: all axes over nodes."""

from __future__ import annotations

from itertools import pairwise, product

from minitrain.lessons.pictures.panels import Figure, box, panels, write

AXES = {
    "tp": ("#777777", "the matrices of a layer", "activations, in every layer; all wait"),
    "cp": ("#009E73", "the tokens of a sequence", "keys and values, in every attention"),
    "ep": ("#CC79A7", "the experts of a layer", "rows of tokens, to their experts and back"),
    "dp": ("#0072B2", "the batch", "gradients, once per step"),
    "pp": ("#D55E00", "the layers", "activations, once per micro-batch"),
}


def overview() -> Figure:
    """Five axes over four nodes of eight GPUs, dp2×pp2×cp2×tp4 with ep2: the groups of rank 0, and what each is for."""
    figure, (axes,) = panels(11, 4.6, bare=True)
    spots = {}
    for node, (pp, dp) in enumerate(product(range(2), range(2))):
        left, top = 5.2 * pp, -3.2 * dp
        box(axes, left - 0.6, top - 1.6, 4.2, 2.2, ("#F2F2F2", ""), ec="#999999")
        axes.text(left + 1.5, top + 0.7, f"node {node}: pp {pp}, dp {dp}", ha="center", va="bottom", fontsize=9)
        for cp, tp in product(range(2), range(4)):
            spots[pp, dp, cp, tp] = left + tp, top - cp
    first = 0, 0, 0, 0
    # Of each axis its groups' members, and how far its lines bend, which would hide each other.
    groups = {
        "tp": ([(0, 0, 0, tp) for tp in range(4)], 0.0),
        "cp": ([first, (0, 0, 1, 0)], 0.0),
        "ep": ([first, (0, 1, 0, 0)], 0.22),
        "dp": ([first, (0, 1, 0, 0)], 0.34),
        "pp": ([first, (1, 0, 0, 0)], -0.2),
    }
    for axis, (members, bend) in groups.items():
        for one, other in pairwise(members):
            line = {"arrowstyle": "-", "color": AXES[axis][0], "lw": 3, "connectionstyle": f"arc3,rad={bend}"}
            axes.annotate("", spots[other], spots[one], arrowprops=line, zorder=2)
    for rank, ((x, y), mine) in enumerate((spot, place == first) for place, spot in spots.items()):
        face = "#FFF3B0" if mine else "white"
        axes.plot(x, y, "s", markersize=20, markerfacecolor=face, markeredgecolor="black", zorder=3)
        write(axes, x, y, str(rank), zorder=4)
    for row, (axis, (color, divides, travels)) in enumerate(AXES.items()):
        y = 0.2 - 1.05 * row
        axes.text(9.4, y, axis, color=color, fontsize=12, fontweight="bold", va="center")
        axes.text(10.1, y, f"divides {divides}\n{travels}", fontsize=9, va="center")
    axes.set(xlim=(-1.6, 15), ylim=(-5, 1.6))
    return figure
