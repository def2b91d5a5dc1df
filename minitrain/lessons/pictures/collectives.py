"""The pictures of the lessons of collectives."""

from __future__ import annotations

from minitrain.comm import Timeline
from minitrain.costs.roofline import Machine
from minitrain.lessons.pictures.panels import Axes, Figure, panels


def side_by_side(timelines: dict[str, Timeline]) -> Figure:
    """A picture of several algorithms on one time scale, one below the other: which rank sends when."""
    from matplotlib.figure import Figure

    sent = {name: [s for s in line.spans if s.kind == "send"] for name, line in timelines.items()}
    ranks = 1 + max((span.rank for spans in sent.values() for span in spans), default=0)
    end = max((span.end for spans in sent.values() for span in spans), default=1.0)
    figure = Figure(figsize=(9, 0.8 + len(sent) * (0.7 + 0.28 * ranks)), layout="constrained")
    for row, (name, spans) in enumerate(sent.items()):
        axes = figure.add_subplot(len(sent), 1, row + 1)
        for span in spans:
            width = 1e6 * (span.end - span.start)
            bar = axes.barh(span.rank, width, left=1e6 * span.start, color="#009E73", edgecolor="white", hatch="||")
            if span.end - span.start > 0.012 * end * (1 + len(span.label)):
                box = {"fc": "w", "ec": "none", "pad": 0.8}
                axes.bar_label(bar, [span.label], label_type="center", fontsize=7, bbox=box)
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set_ylim(ranks - 0.4, -0.6)
        axes.set_xlim(0, 1e6 * end * 1.01)
        done = max((span.end for span in spans), default=0.0)
        axes.set_title(f"{name}: {1e6 * done:.0f} virtual µs", loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("virtual µs; a bar is a message on its way out")
    return figure


def nodes(machine: Machine, card: float, gpus: int = 8, cards: tuple[int, ...] = (8, 1)) -> Figure:
    """The same GPUs in nodes with so many network cards, of `card` bytes per second each."""
    figure, all_axes = panels(9.5, 3.4, len(cards))
    for axes, count in zip(all_axes, cards, strict=True):
        product = f"{count} × {card / 1e9:g} = " if count > 1 else ""
        name = "card" if count == 1 else "cards"
        axes.set_title(f"{count} network {name}: {product}{count * card / 1e9:g} GB/s leave the node", fontsize=10)
        _node(axes, machine, gpus, count)
    return figure


def _node(axes: Axes, machine: Machine, gpus: int, cards: int) -> None:
    """One node, from the switch that connects its GPUs down to the network."""
    from matplotlib.patches import Rectangle

    def box(x: float, y: float, width: float, text: str, color: str) -> None:
        axes.add_patch(Rectangle((x, y), width, 0.6, fc="white", ec=color, lw=1.6, zorder=2))
        axes.text(x + width / 2, y + 0.3, text, ha="center", va="center", fontsize=8, zorder=3)

    green, gray, orange = "#009E73", "#777777", "#D55E00"
    box(0, 4.5, gpus, f"NVSwitch: NVLink, {machine.link / 1e9:g} GB/s for each GPU", green)
    for gpu in range(gpus):
        axes.plot([gpu + 0.5] * 2, [3.6, 4.5], color=green, lw=4, zorder=1)
        axes.plot([gpu + 0.5] * 2, [2.1, 3.0], color=gray, zorder=1)
        box(gpu + 0.06, 3.0, 0.88, f"GPU {gpu}", "#333333")
    for pair in range(gpus // 2):  # a switch for two GPUs and their cards
        box(2 * pair + 0.2, 1.5, 1.6, "PCIe", gray)
    axes.plot([1, gpus - 1], [1.8, 1.8], color=gray, ls=":", zorder=1)  # from switch to switch through the CPUs
    for number in range(cards):
        axes.plot([number + 0.5] * 2, [0.7, 1.5], color=gray, zorder=1)
        axes.plot([number + 0.5] * 2, [-0.8, 0.1], color=orange, lw=2, zorder=1)
        box(number + 0.1, 0.1, 0.8, "card", orange)
    box(0, -1.4, gpus, "network: InfiniBand, or Ethernet with RoCE", orange)
    axes.set(xlim=(-0.1, gpus + 0.1), ylim=(-1.5, 5.2))
    axes.set_axis_off()
