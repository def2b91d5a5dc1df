"""The pictures of the chapter of recomputation: bytes over time, over segments, against work, copies, and losses."""

from __future__ import annotations

from minitrain.comm.pictures import BYTES, TIME
from minitrain.costs import recomputation as costs
from minitrain.lessons.pictures.panels import Figure, bar, box, key, name_rows, panels, write
from minitrain.lessons.recomputation.common import Step, Trial

WAYS = ("#000000", "#004488", "#BB5566", "#DDAA33")  # lines of ways to train: no color of ranks, bytes or time


def trade(points: dict[str, tuple[int, int]]) -> Figure:
    """Work against memory: one point (most bytes at once, operations) for each way, relative to the first."""
    figure, (axes,) = panels(7, 4)
    first = next(iter(points.values()))
    for at, (marker, (name, (peak, operations))) in enumerate(zip("osD^vPX*", points.items(), strict=False)):
        memory, work = 100 * peak / first[0], 100 * operations / first[1]
        axes.plot(memory, work, marker, color=WAYS[at % len(WAYS)], markersize=9)
        axes.annotate(name, (memory, work), xytext=(8, 6), textcoords="offset points")
    box = {"boxstyle": "larrow,pad=0.3", "fc": "#EEEEEE", "ec": "#999999"}
    axes.text(8, 101, "better", rotation=40, fontsize=9, color="#333333", ha="left", va="bottom", bbox=box)
    axes.set(xlim=(0, 125), xlabel="most bytes at once, % of keeping everything")
    axes.set(ylim=(98, 136), ylabel="operations of a step, %")
    axes.grid(alpha=0.3)
    return figure


def over_time(steps: dict[str, Step]) -> Figure:
    """The bytes that autograd keeps during a step, a panel for each way, and where forward ends."""
    figure, panel = panels(9, 3.2, len(steps), sharey=True)
    (color, hatch), ends = BYTES["activations"], {"color": "#999999", "linestyle": "--", "linewidth": 0.8}
    for axes, (name, step) in zip(panel, steps.items(), strict=True):
        held = [each / 1e3 for each in step.history]
        axes.fill_between(range(len(held)), held, step="post", facecolor=color, hatch=hatch, edgecolor="white")
        axes.plot(held, drawstyle="steps-post", color="#333333", linewidth=0.8)
        turn = step.history.index(step.kept)  # forward drops nothing
        axes.axvline(turn, **ends)
        for side, text, gap in (("right", "forward", -4), ("left", "backward", 4)):
            at = {"xycoords": axes.get_xaxis_transform(), "xytext": (gap, 2), "textcoords": "offset points"}
            axes.annotate(text, (turn, 1.0), ha=side, va="bottom", fontsize=8, **at)
        axes.set_title(name, fontsize=10, pad=16)
        axes.set(xlabel="tensors kept or dropped so far", ylim=(0, None))
    panel[0].set_ylabel("kept for backward, kB")
    return figure


def tiles(blocks: int = 5, query: int = 3, key: int = 1) -> Figure:
    """FlashAttention: which tile of the scores is on the chip, and what is in the GPU's memory."""
    from matplotlib.patches import Patch

    figure, (axes,) = panels(9, 3.9, bare=True)
    memory, chip, free = ("#DDDDDD", "", "#888888"), ("#BB5566", "///", "white"), ("white", "", "#CCCCCC")

    def cell(x: float, y: float, width: float, height: float, look: tuple[str, str, str]) -> None:
        box(axes, x, y, width, height, look[:2], ec=look[2])

    for row in range(blocks):
        here = chip if row == query else memory
        cell(0, row, 1.6, 1, here)  # Q
        cell(10.6, row, 1.6, 1, here)  # O
        cell(12.8, row, 0.4, 1, here)  # one number per row
        # K above the scores, V below them.
        for y in (-2.4, blocks + 0.8):
            cell(2.6 + row, y, 1, 1.6, chip if row == key else memory)
        for column in range(row + 1):
            cell(2.6 + column, row, 1, 1, chip if (row, column) == (query, key) else free)
    middle = 2.6 + blocks / 2
    labels = ((0.8, -0.3, "Q"), (11.4, -0.3, "O"), (13.0, -0.3, "ℓ"), (2.3, -1.6, "K"), (2.3, blocks + 1.6, "V"))
    for x, y, text in labels:
        write(axes, x, y, text, 10)
    axes.text(middle + 1.2, 0.8, "scores: one tile\nat a time, never\nwritten to memory", fontsize=8, va="center")
    looks = ((memory, "in the GPU's memory"), (chip, "on the chip now"), (free, "computed tile by tile, not stored"))
    handles = [Patch(fc=fc, hatch=hatch, ec=ec, label=text) for (fc, hatch, ec), text in looks]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False)
    axes.set(xlim=(-0.5, 13.8), ylim=(blocks + 2.6, -2.6), aspect="equal")
    return figure


def segments(chain: dict[int, Step], gpt: dict[int, Step], trial: Trial) -> Figure:
    """The most bytes kept at once over k: what was counted, and the formula's line."""
    figure, (left, right) = panels(9, 4, 2)
    width = 4 * trial.batch * trial.sequence * trial.hidden
    of_chain = {k: costs.peak_of_segments(trial.layers, k, width, width) for k in range(1, trial.layers + 1)}
    of_gpt = {k: costs.gpt_peak(*trial.sizes, k, fused=False) for k in range(1, min(6, trial.layers) + 1)}
    names = {"formula": "-", "counted: most at once": "o", "counted: after forward": "x"}
    for axes, steps, line in ((left, chain, of_chain), (right, gpt, of_gpt)):
        curves = line, {k: step.peak for k, step in steps.items()}, {k: step.kept for k, step in steps.items()}
        for (name, look), curve, color in zip(names.items(), curves, ("#999999", WAYS[0], WAYS[2]), strict=True):
            label = name if axes is left else None
            axes.plot(list(curve), [value / 1e3 for value in curve.values()], look, color=color, label=label)
        axes.set(xlabel="k, layers in a segment", ylabel="kB", ylim=(0, None))
    left.set_title(f"{trial.layers} linear layers, each keeps its input", fontsize=10)
    right.set_title(f"{trial.layers} blocks of a GPT, each keeps about 17 times its input", fontsize=10)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def copies(layers: int, copy: float) -> list[tuple[str, int, float, float]]:
    """Row, block, begin and end of each forward (1 long), backward (2 long) and copy of offloaded blocks.

    At most two blocks are on the device: forward waits until the block before the last one is out.
    """
    spans, out, now = list[tuple[str, int, float, float]](), list[float](), 0.0
    for block in range(layers):
        begin = max(now, out[block - 2]) if block > 1 else now
        now = begin + 1
        out.append(max(now, *out[-1:], 0) + copy)
        spans += [("computing", block, begin, now), ("to the host", block, out[-1] - copy, out[-1])]
    asked = out[-1]
    for block in reversed(range(layers)):
        spans.append(("from the host", block, asked, asked + copy))
        begin = max(now, asked + copy)
        # The next block is fetched while this one goes backward.
        asked, now = begin, begin + 2
        spans.append(("computing", block, begin, now))
    return spans


def offloading(links: dict[str, float], layers: int = 4) -> Figure:
    """Computing and copies over time, for each link: what a block's copy takes, in times of its forward."""
    rows = ("computing", "to the host", "from the host")
    figure, all_axes = panels(9, 1.9 * len(links), rows=len(links), sharex=True)
    for axes, (name, copy) in zip(all_axes, links.items(), strict=True):
        spans, free = copies(layers, copy), 0.0
        for row, block, begin, end in spans:
            if row == rows[0]:
                bar(axes, 0, free, begin - free, TIME["communication, exposed"])
                free = end
            look = TIME["compute"] if row == rows[0] else TIME["communication, hidden"]
            bar(axes, rows.index(row), begin, end - begin, look, str(block), 7, 0.8)
        axes.set_title(name, fontsize=10)
        name_rows(axes, rows)
        axes.set_xticks([])
    axes.set_xlabel("time →")
    names = {"compute": "compute", "waiting for a copy": "communication, exposed", "copy": "communication, hidden"}
    key(figure, axes, {name: TIME[kind] for name, kind in names.items()})
    return figure
