"""The pictures of the chapter of optimizers: bytes of states, and losses and ratios of its experiments."""

from __future__ import annotations

from collections.abc import Sequence

from minitrain.lessons.pictures.panels import Figure, panels


def states(measured: dict[str, float]) -> Figure:
    """Bytes of states per parameter, one bar for each optimizer."""
    figure, (axes,) = panels(6, 2.6)
    bars = axes.barh(list(measured), list(measured.values()), color="#56B4E9")  # as in the bar of memory
    axes.bar_label(bars, [f"{each:.2f}" for each in measured.values()], padding=3)
    axes.invert_yaxis()
    axes.set_xlim(0, 9)
    axes.set_xlabel("bytes of optimizer states per parameter of a small GPT, measured")
    return figure


def losses(by_rank: Sequence[dict[str, list[float]]], last: int = 10) -> Figure:
    """A dot per seed, and the mean of all seeds: each the mean loss of the last steps."""
    (figure, (axes,)), names = panels(7, 3), [*by_rank[0]]
    for row, name in enumerate(names):
        ends = [sum(each[name][-last:]) / last for each in by_rank]
        axes.plot(ends, [row] * len(ends), "o", color="#0072B2", alpha=0.6)
        mean = sum(ends) / len(ends)
        axes.text(mean, row - 0.25, f"{mean:.2f}", ha="center", fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.8)
    axes.set_xlabel(f"loss, mean of the last {last} steps; a dot per seed, and their mean")
    return figure


def sweep(by_rank: Sequence[dict[tuple[str, str, int], float]]) -> Figure:
    """Losses on held-out text over the size of the batch; a line per rule, and a panel per optimizer."""
    from minitrain.lessons.optimizers.experiments import BATCHES, RULES, SCALED

    top = 5.0  # little better than nothing learned, ln 256 = 5.5
    losses = {training: loss for each in by_rank for training, loss in each.items()}
    figure, both = panels(7, 2.8, 2, sharey=True)
    for axes, (optimizer, (_, best)) in zip(both, SCALED.items(), strict=True):
        first = losses[optimizer, "", BATCHES[0]]
        for rule, marker, color in zip(RULES, "so", ("#D55E00", "#0072B2"), strict=True):
            rest = [losses[optimizer, rule, batch] for batch in BATCHES[1:]]
            axes.plot(BATCHES, [first, *rest], marker=marker, color=color, label=rule)
            for batch, loss in zip(BATCHES[1:], rest, strict=True):
                if loss > top:
                    axes.annotate(f"{loss:.1f} ↑", (batch, top), color=color, ha="center", va="top")
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.set_title(f"{optimizer}, rate {best} at batch {BATCHES[0]}", fontsize=10)
        axes.set_xlabel("sequences in a batch")
    both[0].set_ylim(2.4, top)
    both[0].set_ylabel("loss on held-out text")
    both[0].legend(frameon=False)
    return figure


def ratios(by_matrix: dict[str, list[float]]) -> Figure:
    """A line per matrix over the steps, on a logarithmic scale; a color for each kind of matrix."""
    kinds = {
        "embedding.tokens": ("token embedding", "#000000"),
        "embedding.positions": ("positions", "#999999"),
        "attention.query": ("queries, keys", "#0072B2"),
        "attention.key": ("queries, keys", "#0072B2"),
        "attention.value": ("values", "#56B4E9"),
        "attention.output": ("attention's output", "#D55E00"),
        "mlp.up": ("MLP up", "#009E73"),
        "mlp.down": ("MLP down", "#CC79A7"),
    }
    (figure, (axes,)), shown = panels(7, 3), set()
    for name, values in by_matrix.items():
        label, color = kinds[name.removeprefix("blocks.0.").removeprefix("blocks.1.")]
        style = "--" if name.startswith("blocks.1.") else "-"
        axes.semilogy(range(1, len(values) + 1), values, style, color=color, label=None if label in shown else label)
        shown.add(label)
    axes.set_xlabel("step (dashed: second block)")
    axes.set_ylabel("trust ratio")
    figure.legend(frameon=False, loc="outside right center", fontsize=9)
    return figure
