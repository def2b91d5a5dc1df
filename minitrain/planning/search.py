"""The search: which layout trains a model fastest on these GPUs, among those that fit into their memory.

**Idea.** A few thousand layouts are possible. A lower bound on the time of each is cheap: a pipeline must at least fill
and empty, and messages that hide behind nothing take their time. Take layouts in the order of their bounds, leave
out those that do not fit, and work out the real time of the others. As soon as a bound exceeds the tenth-best time
found so far, all layouts that follow are slower, too, and the ten are the best of all.

**Source.** Enumeration and pruning by memory: Narayanan et al. 2021, §3 and §5.4; Zheng et al. 2022, "Alpa". Taking
candidates in the order of their bounds: branch and bound, best first (Land & Doig 1960).
**Cost.** One bound for each layout, and a simulated step for the few that might be among the best.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import product
from typing import Any

from minitrain.composition.layout_settings import Layout, Steps, problem
from minitrain.composition.presets import Model

LONG = 8192  # tokens of a sequence that a context-parallel rank holds at least, as in Llama 3


def search(
    layouts: Iterable[Layout],
    least: Callable[[Layout], float],
    fits: Callable[[Layout], bool],
    seconds: Callable[[Layout], float],
    alike: Callable[[Layout], Hashable] = lambda layout: layout,
    keep: int = 10,
) -> list[tuple[float, Layout]]:
    """The `keep` fastest layouts that fit, each with its seconds; of those that are `alike`, only the fastest."""
    # Where bounds or times are equal, the order of `layouts` decides.
    bounds = sorted((least(layout), number, layout) for number, layout in enumerate(layouts))
    best: dict[Hashable, tuple[float, int, Layout]] = {}
    for bound, number, layout in bounds:
        kept = sorted(best.values())[:keep]
        # Bounds only grow from here on, so no layout that follows can be faster than the slowest that is kept.
        if len(kept) == keep and bound > kept[-1][0]:
            break
        # Neither can it be faster than one that is alike. What holds too much need not be simulated.
        known = best.get(alike(layout))
        if (known is None or bound <= known[0]) and fits(layout):
            found = (seconds(layout), number, layout)
            best[alike(layout)] = min(found, known or found)
    return [(time, layout) for time, _, layout in sorted(best.values())[:keep]]


def layouts(model: Model, steps: Steps, gpus: int, per_node: int = 8) -> Iterator[Layout]:
    """All layouts of so many GPUs that the trainer accepts and that a reader would consider."""
    # The trainer refuses some: `problem` is its own check.
    axes = divisors(per_node), divisors(gpus), divisors(model.sizes.experts or 1), contexts(model.sizes.positions, gpus)
    for tp, pp, ep, (cp, mode) in product(*axes):
        # Tensor parallelism stays within a node, where links are fast; data parallelism takes the ranks that remain.
        dp, rest = divmod(gpus, tp * pp * cp)
        if rest or pp > model.sizes.layers or steps.batch % dp:
            continue
        sequence = tp > 1 and model.sizes.positions % (cp * tp) == 0
        # A fused kernel, which attention is without dropout, already recomputes what selective recomputation would.
        ways = ("none", "selective", "full") if model.dropout else ("none", "full")
        options: Iterable[Any] = product((1, 2, 4, 8, 16), (0, 1, 2, 3), ways)
        for sequences, zero, recompute in options:
            microbatches, rest = divmod(steps.batch // dp, sequences)
            for schedule, chunks in () if rest else schedules(model.sizes.layers, pp, tp):
                way = sequence, zero, schedule, chunks, microbatches, recompute
                layout = Layout(dp, pp, tp, ep, *way, cp=cp, cp_mode=mode)
                # ZeRO shards over dp · cp ranks, and a single one has nothing to shard.
                if (dp * cp > 1 or not zero) and problem(model, layout, steps) is None:
                    yield layout


def schedules(layers: int, pp: int, tp: int) -> Iterator[tuple]:
    """Schedule and chunks: 1F1B; interleaved; those without a bubble, where backward is divided (not with tp)."""
    # GPipe takes as long as 1F1B and holds more. Stages may differ by one layer, in the default split of the trainer.
    yield ("1f1b", 2)
    if pp > 1:
        yield from (("interleaved", chunks) for chunks in range(2, 1 + min(8, layers // pp)))
        yield from ((name, 2) for name in ("zb-h1", "zb-h2", "zb-v") if tp == 1)


def contexts(positions: int, gpus: int) -> Iterator[tuple]:
    """Context-parallel ranks and their mode: one, or for long sequences more, with zigzag or Ulysses."""
    # A short chunk has too little attention for its keys and values to hide behind. A contiguous ring, and a gather,
    # send as much as zigzag, and their ranks wait for the last one.
    yield 1, "zigzag"
    yield from product((n for n in divisors(gpus) if 1 < n <= positions // LONG), ("zigzag", "ulysses"))


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
