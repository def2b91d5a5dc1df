"""Pictures of composed training: all axes over nodes, and the mesh of ranks with its groups."""

from __future__ import annotations

from itertools import pairwise, product

from minitrain.lessons.pictures.panels import Figure, box, panels, write

Where = tuple[int, dict[str, int], dict[str, list[int]]]


def mesh(where: list[Where]) -> Figure:
    """The mesh, drawn from the ranks' real groups: each rank at its place, and a line for each group.

    Args:
        where: Of each rank its number, its place on each axis, and the ranks of its groups along pp, dp and tp.
    """
    spots = {rank: _spot(place) for rank, place, _ in where}
    figure, (axes,) = panels(9, 4.6)
    styles = {"tp": ("-", 7.0, "#CCCCCC"), "dp": ("--", 1.6, "#0072B2"), "pp": ("-", 1.6, "#D55E00")}
    for axis, (style, width, color) in styles.items():
        label: str | None = f"{axis} group"
        for ranks in sorted({tuple(groups[axis]) for _, _, groups in where}):
            if len(ranks) > 1:
                xs, ys = zip(*(spots[rank] for rank in ranks), strict=True)
                axes.plot(xs, ys, style, linewidth=width, color=color, label=label, zorder=1)
                label = None
    for rank, place, _ in where:
        x, y = spots[rank]
        axes.plot(x, y, "o", markersize=26, markerfacecolor="white", markeredgecolor="black", zorder=2)
        write(axes, x, y, str(rank), 11, zorder=3)
        named = f"pp {place['pp']} dp {place['dp']} tp {place['tp']}"
        axes.text(x - 0.06, y - 0.2, named, ha="right", va="top", fontsize=8, zorder=3)  # where no line runs
    axes.margins(0.15)
    axes.axis("off")
    if len(where) > 1:
        axes.legend(frameon=False, loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.08))
    return figure


def _spot(place: dict[str, int]) -> tuple[float, float]:
    """Stages from left to right, replicas from top to bottom, tensor-parallel ranks slanting side by side."""
    return 2.6 * place["pp"] + 0.9 * place["tp"], -1.3 * place["dp"] - 0.45 * place["tp"]


# axis -> its color, what it divides, and what travels along it.
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
