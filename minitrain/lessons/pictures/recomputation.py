"""The pictures of the chapter of recomputation: bytes over time, over segments, against work, and losses."""

from __future__ import annotations

from minitrain.costs import recomputation as costs
from minitrain.lessons.pictures.panels import Figure, panels
from minitrain.lessons.recomputation.common import Step, Trial


def trade(points: dict[str, tuple[int, int]]) -> Figure:
    """Work against memory: one point (most bytes at once, operations) for each way, relative to the first."""
    figure, (axes,) = panels(7, 4)
    first = next(iter(points.values()))
    for marker, (name, (peak, operations)) in zip("osD^vPX*", points.items(), strict=False):
        memory, work = 100 * peak / first[0], 100 * operations / first[1]
        axes.plot(memory, work, marker, markersize=9)
        axes.annotate(name, (memory, work), xytext=(8, 6), textcoords="offset points")
    box = {"boxstyle": "larrow,pad=0.3", "fc": "#EEEEEE", "ec": "#999999"}
    axes.text(8, 101, "better", rotation=40, fontsize=9, color="#333333", ha="left", va="bottom", bbox=box)
    axes.set(xlim=(0, 125), xlabel="most bytes kept at once, % of keeping everything")
    axes.set(ylim=(98, 136), ylabel="operations of a step, %")
    axes.grid(alpha=0.3)
    return figure


def over_time(steps: dict[str, Step]) -> Figure:
    """The bytes that autograd keeps during a step, one line for each way."""
    figure, (axes,) = panels(8, 4)
    for (name, step), style in zip(steps.items(), ("-", "--", "-.", ":") * len(steps), strict=False):
        axes.plot([held / 1e3 for held in step.history], style, drawstyle="steps-post", label=name)
    axes.set_xlabel("tensors kept or dropped so far, from the beginning of forward to the end of backward")
    axes.set(ylabel="kept for backward, kB", ylim=(0, None))
    axes.legend(frameon=False)
    return figure


def segments(chain: dict[int, Step], gpt: dict[int, Step], trial: Trial) -> Figure:
    """The most bytes kept at once over k: what was counted, and the formula's line; k = 0 stands for from the start."""
    figure, (left, right) = panels(9, 4, 2)
    every = range(1, trial.layers + 1)
    width = 4 * trial.batch * trial.sequence * trial.hidden
    line = [costs.peak_of_segments(trial.layers, k, width, width) / 1e3 for k in every]
    left.plot(every, line, "-", color="#999999", label="formula")
    left.plot(list(chain), [step.peak / 1e3 for step in chain.values()], "o", label="counted: most at once")
    left.plot(list(chain), [step.kept / 1e3 for step in chain.values()], "x", label="counted: after forward")
    if 0 in chain:
        where = {"xytext": (6, -4), "textcoords": "offset points", "fontsize": 8}
        left.annotate("from the start", (0, chain[0].peak / 1e3), **where)
    left.set_title(f"{trial.layers} linear layers, each keeps its input", fontsize=10)
    few = range(1, min(6, trial.layers) + 1)
    line = [costs.gpt_peak(*trial.sizes, k, fused=False) / 1e3 for k in few]
    right.plot(few, line, "-", color="#999999")
    right.plot(list(gpt), [step.peak / 1e3 for step in gpt.values()], "o")
    right.plot(list(gpt), [step.kept / 1e3 for step in gpt.values()], "x")
    right.set_title(f"{trial.layers} blocks of a GPT, each keeps about 17 times its input", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="k, layers in a segment", ylabel="kB", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def losses(by_width: dict[str, list[float]]) -> Figure:
    """The losses over the steps, one line for each width; means of ten steps."""
    figure, (axes,) = panels(7, 4)
    for (name, values), style in zip(by_width.items(), ("-", "--", "-.", ":"), strict=True):
        means = [sum(values[at : at + 10]) / 10 for at in range(0, len(values) - 9, 10)]
        axes.plot(range(10, len(values) + 1, 10), means, style, label=name)
    axes.set(xlabel="step", ylabel="loss, mean of ten steps")
    axes.legend(frameon=False, title="kept in")
    return figure
