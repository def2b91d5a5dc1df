"""Pictures of composed training: the mesh of ranks with their groups, and one loss in every layout."""

from __future__ import annotations

from minitrain.lessons.pictures.panels import Figure, panels

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
        axes.text(x, y, str(rank), ha="center", va="center", fontsize=11, zorder=3)
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


def losses(curves: dict[str, list[float]]) -> Figure:
    """The loss of every layout, one curve over the other."""
    figure, (axes,) = panels(8, 4.2)
    for number, (name, losses) in enumerate(curves.items()):
        # Each later curve is thinner, so that those below it can be seen.
        width = 1 + 9 * (1 - number / max(1, len(curves) - 1))
        axes.plot(losses, marker="o", markersize=width + 2, linewidth=width, label=name)
    axes.set(xlabel="step", ylabel="loss, nats per byte", xticks=range(len(next(iter(curves.values())))))
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return figure
