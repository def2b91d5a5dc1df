"""The layouts that a plan proposes: found by the search, each with its speed, what it holds, and what limits it.

`minitrain.planning.full.command` prints them. Nothing is measured here, and torch is not needed.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import scaling as costs
from minitrain.costs.composition_work import Work
from minitrain.costs.memory import GB, ROOM
from minitrain.costs.time_bar import Bar
from minitrain.planning.full import plan_time
from minitrain.planning.full.time_model import (
    Cluster,
    alone,
    fits,
    least_time,
    most_held,
    stage_seconds,
    step_time,
    waited_for,
)
from minitrain.planning.plan import Coordinate, predict
from minitrain.planning.search import layouts, search


@dataclass(frozen=True)
class Proposal:
    """A layout that fits, and what the model of time says about it.

    Attributes:
        bar: Seconds of a step, by what they are spent on.
        held: Bytes on the rank that holds most.
        tokens: Tokens per second, all GPUs together.
        mfu: Model FLOP utilization.
        scaling: Efficiency: the speed of all GPUs over that of one with room for all, times their number.
        limit: What takes most of the time in which no operation of the model is computed.
    """

    layout: Layout
    bar: Bar
    held: int
    tokens: float
    mfu: float
    scaling: float
    limit: str


class NothingFits(ValueError):
    """No layout fits into the GPUs' memory; the message says how much is missing, and what would do."""


def propose(
    model: Model, steps: Steps, gpus: int, cluster: Cluster, keep: int = 10, every: bool = False
) -> list[Proposal]:
    """The fastest layouts that fit.

    Args:
        steps: Batch, dtype and optimizer are looked at.
        keep: How many layouts.
        every: Take the variants of one dp × pp × cp × tp as different layouts; else the fastest of them is proposed.

    Raises:
        ValueError: No layout has this number of ranks.
        NothingFits: No layout fits into memory.
    """
    found = fastest(model, steps, candidates(model, steps, gpus, cluster), cluster, keep, every)
    if not found:
        raise NothingFits(_missing(model, steps, gpus, cluster))
    return [judge(model, layout, steps, cluster) for layout in found]


def fastest(
    model: Model, steps: Steps, among: Iterable[Layout], cluster: Cluster, keep: int = 1, every: bool = False
) -> list[Layout]:
    """The fastest of some layouts that fit; none if none does."""
    # First a bound that needs no simulation; only layouts that may be among the best are simulated.
    found = search(
        among,
        lambda layout: least_time(model, layout, steps, cluster),
        lambda layout: fits(model, layout, steps, cluster.machine),
        lambda layout: step_time(model, layout, steps, cluster).step,
        (lambda layout: layout) if every else axes,
        keep,
    )
    return [layout for _, layout in found]


def axes(layout: Layout) -> tuple[int, int, int, int, int]:
    """The sizes by which layouts differ in a table that shows one variant of each."""
    return layout.dp, layout.pp, layout.cp, layout.tp, layout.ep


def candidates(model: Model, steps: Steps, gpus: int, cluster: Cluster) -> list[Layout]:
    """All layouts that are considered, whether they fit into memory or not.

    Raises:
        ValueError: There is none.
    """
    per_node = cluster.per_node
    if gpus < 1 or per_node < 1:
        raise ValueError(f"gpus={gpus} and per_node={per_node} must be at least 1")
    if gpus > per_node and gpus % per_node:
        less = gpus // per_node * per_node
        raise ValueError(
            f"gpus={gpus} do not fill nodes of per_node={per_node}; use {less} or {less + per_node}, or another number "
            "of GPUs per node"
        )
    found = list(layouts(model, steps, gpus, per_node))
    if not found:
        step = per_node if gpus > per_node else 1
        # In both directions, the nearest first.
        near = [other for distance in range(step, 64 * step, step) for other in (gpus - distance, gpus + distance)]
        use = next((other for other in near if other > 0 and any(layouts(model, steps, other, per_node))), None)
        raise ValueError(
            f"gpus={gpus}: no dp · pp · tp of so many ranks suits layers={model.sizes.layers}, "
            f"heads={model.sizes.heads} and batch={steps.batch}"
            + (f"; gpus={use} would, or a batch that gpus={gpus} divides" if use else "")
        )
    return found


def judge(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Proposal:
    """What the model of time says about a layout.

    Raises:
        ValueError: The layout does not fit the model or the batch.
    """
    bar, work = step_time(model, layout, steps, cluster), plan_time.work(model, layout, steps)
    tokens, own = work.tokens / bar.step, work.model / layout.ranks / bar.step
    limit = _limit(model, layout, steps, cluster, bar)
    mfu, scaling = own / cluster.machine.flops, efficiency(model, layout, steps, cluster, bar)
    return Proposal(layout, bar, most_held(model, layout, steps), tokens, mfu, scaling, limit)


def efficiency(model: Model, layout: Layout, steps: Steps, cluster: Cluster, bar: Bar) -> float:
    """Scaling efficiency of a layout whose step takes so long."""
    one = alone(model, steps, cluster)
    # Of computing, what exceeds a share of one GPU's is uneven, or the same on several ranks.
    lost = bar.compute - one / layout.ranks, bar.again, bar.idle, bar.exposed
    return costs.efficiency(one, layout.ranks, *lost)


def _limit(model: Model, layout: Layout, steps: Steps, cluster: Cluster, bar: Bar) -> str:
    """The largest loss of time, with its share of the step."""
    once = plan_time.busy(layout, stage_seconds(model, replace(layout, recompute="none"), steps, cluster))
    waited = min(waited_for(model, layout, steps, cluster), bar.exposed)
    # Of a ring, only those messages count that do not hide behind attention; so do those of dp.
    ring = layout.cp > 1 and layout.cp_mode in ("ring", "zigzag")
    along = [axis for axis, used in (("cp", layout.cp > 1 and not ring), ("ep", layout.ep > 1)) if used]
    lost = {
        "recomputation": bar.again,
        "pipeline bubble": bar.idle,
        "uneven stages": max(once) - sum(once) / len(once),
        f"{', '.join(['tp', *along])} messages": waited,
        "dp, cp messages" if ring else "dp messages": bar.exposed - waited,
    }
    name = max(lost, key=lambda kind: lost[kind])
    share = lost[name] / bar.step
    # Less would be shown as 0 %.
    return f"{name}, {100 * share:.0f} %" if share >= 0.005 else "products alone"


def command_line(model: Model, layout: Layout, steps: Steps, per_node: int = 8) -> str:
    """How to start the training under torchrun: on one machine, or the same line on each of several."""
    nodes = -(-layout.ranks // per_node)
    words = ["torchrun", "--nproc-per-node", str(min(per_node, layout.ranks))]
    if nodes > 1:
        words[1:1] = ["--nnodes", str(nodes)]
        words += ["--rdzv-id", "plan", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400"]
    return shlex.join([*words, "-m", "minitrain.train", *options(model, layout, steps)])


def options(model: Model, layout: Layout, steps: Steps) -> list[str]:
    """The trainer's options for what differs from its defaults."""
    unused = set()
    if layout.schedule != "interleaved" or layout.pp == 1:
        unused.add("chunks")
    if layout.pp == 1:
        unused.add("schedule")
    words: list[str] = []
    for settings in (model, layout, steps):
        for field in dataclasses.fields(settings):
            value, name = getattr(settings, field.name), field.name.replace("_", "-")
            # A command with these alone can be read, and typed.
            if value == field.default or field.name in unused:
                continue
            if isinstance(field.default, bool):  # a flag; others are named with their value
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                words += [f"--{name}", str(value)]
    return words


def _missing(model: Model, steps: Steps, gpus: int, cluster: Cluster) -> str:
    """How much the most economical layout lacks, and the nearest number of GPUs, and size of GPU, that would do."""
    size = partial(most_held, model, steps=steps)
    frugal = min(_frugal(model, steps, gpus, cluster), key=lambda layout: size(layout=layout))
    held, room = size(layout=frugal) / GB, (1 - ROOM) * cluster.machine.size / GB
    ranks = [predict(model, frugal, steps, Coordinate(pp)) for pp in range(frugal.pp)]
    fullest = max(range(frugal.pp), key=lambda pp: sum(ranks[pp].held.values())) * frugal.dp * frugal.cp * frugal.tp
    text = (
        f"no layout of {gpus:,} GPUs fits: {frugal} needs least ({described(frugal)}), and still holds {held:,.1f} GB "
        f"on rank {fullest}, where {room:.1f} of a GPU's {cluster.machine.size / GB:g} GB can be used (the rest is "
        f"room for what is not counted). {held - room:,.1f} GB are missing"
    )
    enough = f"GPUs of {held / (1 - ROOM):,.0f} GB"
    for more in (gpus * factor for factor in (2, 3, 4, 6, 8, 12, 16, 24, 32)):
        others = _frugal(model, steps, more, cluster) if more <= cluster.per_node or not more % cluster.per_node else []
        fit = [other for other in others if fits(model, other, steps, cluster.machine)]
        if fit:
            return f"{text}; the nearest that fits are {more:,} of these GPUs ({fit[0]}), or {enough}"
    return f"{text}; use {enough}"


def _frugal(model: Model, steps: Steps, gpus: int, cluster: Cluster) -> list[Layout]:
    """The candidates that hold least on each dp × pp × cp × tp: one sequence at once, full recomputation, much ZeRO."""
    found = {}
    for layout in layouts(model, steps, gpus, cluster.per_node):
        one = plan_time.microbatch(layout, steps) == 1 and layout.recompute == "full"
        # Of the schedules that are searched, none holds fewer micro-batches than 1F1B.
        if one and layout.schedule == "1f1b" and layout.zero >= getattr(found.get(axes(layout)), "zero", 0):
            found[axes(layout)] = layout
    return list(found.values())


def described(layout: Layout) -> str:
    """What a layout's name leaves out, in words."""
    how = f", {layout.schedule}" if layout.pp > 1 else ""
    how += f" in {layout.chunks} chunks" if layout.schedule == "interleaved" and layout.pp > 1 else ""
    return f"ZeRO {layout.zero}{how}, recompute {layout.recompute}, {layout.microbatches} micro-batches"


def uneven(model: Model, layout: Layout, steps: Steps) -> tuple[list[int], float] | None:
    """A split of the layers with the head counted, if it makes the pipeline faster than the trainer's own split.

    The last stage, which has the head as well, gets fewer layers: the number that makes the pipeline fastest. The other
    stages share the rest, the first ones one more. Embeddings cost no operations.

    Returns:
        Layers of each stage, and how many times as long the pipeline takes; None where no such split is faster.

    Source: Megatron-LM counts the head as a layer (`--account-for-loss-in-pipeline-split`); derived.
    """
    each, stages, layers = plan_time.stage_times(model, layout, steps), layout.stages, model.sizes.layers
    if stages == 1 or model.sizes.experts:
        return None
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    # The first stage has nothing but blocks, since embeddings cost no operations.
    layer = tuple(part // counts[0] for part in each[0])
    # What is left of the last stage without its blocks.
    head = Work(*(part - counts[-1] * one for part, one in zip(each[-1], layer, strict=True)))
    usual = float(plan_time.bubble(model, layout, steps).span)
    best: tuple[float, list[int]] = (usual, [])
    for last in range(1, counts[-1]):
        rest = layers - last
        split = [rest // (stages - 1) + (stage < rest % (stages - 1)) for stage in range(stages - 1)] + [last]
        times = [Work(*(number * part for part in layer)) for number in split]
        times[-1] += head
        best = min(best, (float(plan_time.span_of(layout, tuple(times))), split))
    # Less than half a per cent is below the model's own error.
    return (best[1], best[0] / usual) if best[0] < 0.995 * usual else None
