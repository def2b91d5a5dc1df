"""How much the ranks of the dry run compute and wait in a step: operations, and the bubble of the real stages.

Settings are translated for the formulas here, too: the model's shape, the rows of routers, the order of a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import composition as costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs import pipeline as pipeline_costs
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import SCHEDULES

# Choices of a token and capacity factor of each router as it is made by default (chapter 12).
_ROUTERS = {"switch": (1, 1.25), "expert_choice": (2, 1.0), "top_k": (2, None), "bias_balanced": (2, None)}
T = TypeVar("T", int, float)
_SIMULATED = 60_000  # actions of a schedule that are simulated within a fraction of a second


@dataclass(frozen=True)
class Bubble:
    """How long a step makes the ranks of a pipeline wait, in operations of one rank, as if messages took no time.

    The operations are those of the real stages, which are often uneven: on the 64 stages of Narayanan et al. 2021,
    table 1, half would have two of GPT-3's 96 layers and half one, a quarter of all time lost before any bubble.

    Attributes:
        work: Operations of each pipeline rank.
        span: From the first start to the last end. The gradient's norm makes all ranks wait for the last.
        equal: Over the ideal, by the formula for equal stages; None where there is no formula.
        slowest: The stage with the most operations.
    """

    work: tuple[int, ...]
    span: float | Fraction
    equal: Fraction | None
    slowest: int

    @property
    def ideal(self) -> int:
        """The work of the busiest rank."""
        return max(self.work)

    @property
    def over_ideal(self) -> float:
        """Idle time of the busiest rank over its work (Narayanan et al. 2021, §2.2)."""
        return float((self.span - self.ideal) / self.ideal)

    @property
    def over_total(self) -> float:
        """Idle time of the busiest rank over all time (Huang et al. 2019, §2.3)."""
        return float((self.span - self.ideal) / self.span)

    @property
    def idle(self) -> float:
        """Part of all ranks' time in which they do nothing: the bubble, and waiting for stages with more work."""
        return 1 - sum(self.work) / (len(self.work) * float(self.span))


@dataclass(frozen=True)
class Work:
    """Operations of a step.

    Attributes:
        model: Those of the model, forward and backward, all ranks together.
        done: With what is computed again.
        tokens: Tokens in a step.
    """

    model: int
    done: int
    tokens: int


def shape_of(model: Model) -> costs.Shape:
    """The model in the form of `minitrain.costs.composition`."""
    sizes = model.sizes
    same: dict[str, Any] = {name: value for name, value in vars(sizes).items() if name in costs.Shape._fields}
    kinds: dict[str, Any] = {
        "learned": sizes.positions_kind == "learned",
        "gated": sizes.mlp == "swiglu",
        "rms": sizes.norm == "rms",
    }
    same |= {"latent": costs.Latent(*sizes.latent) if sizes.latent else None}
    same |= {"chosen": sizes.experts_per_token or _ROUTERS[model.sizes.router][0]}
    return costs.Shape(**same | kinds, inner=sizes.mlp_hidden, expert_inner=sizes.expert_hidden)


def own_shape(model: Model, layout: Layout) -> costs.Shape:
    """The model as `shape_of`, but with those positions of a sequence that a context-parallel rank holds."""
    shape = shape_of(model)
    return shape._replace(positions=shape.positions // layout.cp)


def microbatch(layout: Layout, steps: Steps) -> int:
    """Sequences in a micro-batch of one data-parallel rank."""
    return steps.batch // (layout.dp * layout.microbatches)


def rows_of(model: Model, sequences: int) -> int:
    """Rows that a router makes of this many sequences, if the load is even; 0 without experts."""
    sizes = model.sizes
    if not sizes.experts:
        return 0
    # Evenly spread: a plan cannot know the load.
    choices, factor = _ROUTERS[model.sizes.router]
    if sizes.experts_per_token:
        choices, factor = sizes.experts_per_token, None  # today's models drop no token
    seq = sizes.positions
    return sent_costs.routes(sequences * seq, seq, sizes.experts, min(choices, sizes.experts), factor)


def placement(layout: Layout) -> tuple[int, ...]:
    """For each stage the pipeline rank that holds it."""
    return schedule_of(layout, layout.pp).placement  # as with any other number of micro-batches


def stage_times(model: Model, layout: Layout, steps: Steps) -> tuple[work_costs.Work, ...]:
    """Operations of each stage for one micro-batch."""
    return _stage_times(model, _alike(layout), steps)


def _alike(layout: Layout) -> Layout:
    """The layout that takes as long in its pipeline, with the options that make no difference there left out."""
    # The search asks for many layouts that differ in these alone, and simulates one of them.
    return replace(layout, zero=0, ep=1, sequence_parallel=False)


@cache
def _stage_times(model: Model, layout: Layout, steps: Steps) -> tuple[work_costs.Work, ...]:
    shape, sequences, stages = shape_of(model), microbatch(layout, steps), layout.stages
    rows, share = rows_of(model, sequences), _share(layout)
    found = []
    for stage in range(stages):
        cut = layout.tp, layout.recompute, layout.cp, share
        found.append(work_costs.stage_work(sequences, shape, stages, stage, rows, *cut))
    return tuple(found)


def busy(layout: Layout, each: Sequence[tuple[T, T, T]]) -> list[T]:
    """What each pipeline rank takes in a step, if stages take this long, or so many operations, for one micro-batch."""
    work: list[Any] = [0] * layout.pp
    for rank, one in zip(placement(layout), each, strict=True):
        work[rank] += layout.microbatches * sum(one)
    return work


def layers_on(model: Model, layout: Layout, pp: int) -> int:
    """Layers of a pipeline rank."""
    counts = costs.layer_counts(model.sizes.layers, layout.stages)
    return sum(n for n, rank in zip(counts, placement(layout), strict=True) if rank == pp)


def core_forward(model: Model, layout: Layout, steps: Steps) -> int:
    """Operations of one layer's core in forward, for one micro-batch, with nothing masked."""
    return work_costs.core_work(microbatch(layout, steps), shape_of(model), layout.tp, _share(layout))


def core(model: Model, layout: Layout, steps: Steps) -> int:
    """Operations of attention's cores in a step, forward and backward, on the pipeline rank that computes most."""
    work = busy(layout, stage_times(model, layout, steps))
    own = layers_on(model, layout, work.index(max(work)))
    # Backward does twice what forward does.
    return 3 * layout.microbatches * own * core_forward(model, layout, steps)


def products_forward(model: Model, layout: Layout, steps: Steps, layer: int) -> int:
    """Operations of a layer's products in forward, for one micro-batch."""
    sequences, cut = microbatch(layout, steps), (layout.tp, "none", layout.cp, _share(layout))
    return work_costs.layer_work(sequences, shape_of(model), layer, rows_of(model, sequences), *cut).weight


def parameters_of(model: Model, layout: Layout) -> float:
    """Parameters of one rank, nearly: the model's, over tp and pp, and of experts over ep."""
    shape = shape_of(model)
    more = costs.expert_parameters(shape)
    return (costs.model_parameters(shape) - more + more / layout.ep) / (layout.tp * layout.pp)


def _share(layout: Layout) -> Fraction:
    return work_costs.core_share(layout.cp_mode, layout.cp)


def bubble(model: Model, layout: Layout, steps: Steps) -> Bubble:
    """How long a step makes the ranks of a pipeline wait, for the operations of the real stages.

    Simulated. If a schedule has too many actions for that, the last micro-batches are assumed to add as much as those
    before them: once full, a pipeline is periodic.
    """
    return _bubble(model, _alike(layout), steps)


@cache
def _bubble(model: Model, layout: Layout, steps: Steps) -> Bubble:
    each = stage_times(model, layout, steps)
    slowest = max(range(len(each)), key=lambda stage: sum(each[stage]))
    return Bubble(tuple(busy(layout, each)), span_of(layout, each), _equal_stages(layout), slowest)


def least_span(layout: Layout, each: Sequence[Any], work: Sequence[float]) -> float:
    """What `span_of` has at least: a rank's own, after what must come before, and before others.

    A rank waits for its first micro-batch until all stages before its own have sent it forward. After its last backward
    these stages still have theirs to do. (Where backward is divided, a rank may fill that time with W.) For equal
    stages under 1F1B, also interleaved, this is the span itself on the last rank.

    Args:
        each: What each stage takes for a micro-batch.
        work: What each pipeline rank takes for its own stages and all micro-batches.
    """
    divided = splits_backward(layout) and layout.schedule.startswith("zb")
    around, found = 0.0, []
    for own, one in zip(work, each, strict=False):  # stage r is the lowest of rank r
        found.append(around + own)
        around += one.forward if divided else sum(one)
    return max(found)


@cache
def span_of(layout: Layout, each: tuple[Any, ...]) -> float | Fraction:
    """From the first start to the last end of a step, if stages take this long for one micro-batch."""
    if not splits_backward(layout):
        # Their W is empty, so I has all of backward.
        each = tuple(one._replace(backward=one.backward + one.weight, weight=0) for one in each)
    times: Any = tuple(zip(*each, strict=True))
    m = layout.microbatches
    # A multiple of pp, as the interleaved schedule needs.
    most = max(4, _SIMULATED // (3 * len(each) * layout.pp)) * layout.pp
    if m <= most + layout.pp:
        return simulate(schedule_of(layout, m), *times).makespan
    # As far from m as a multiple of pp, by which a full pipeline repeats itself.
    before = most - layout.pp + m % layout.pp
    one, two = (simulate(schedule_of(layout, count), *times).makespan for count in (before, before + layout.pp))
    return two + (m - before - layout.pp) * (two - one) / layout.pp


def work(model: Model, layout: Layout, steps: Steps) -> Work:
    """The operations of a step."""
    shape, rows = shape_of(model), rows_of(model, steps.batch)
    own = work_costs.step_flops(steps.batch, shape, rows)
    done = work_costs.step_flops(steps.batch, shape, rows, layout.recompute)
    return Work(own, done, steps.batch * shape.positions)


def most_utilization(model: Model, layout: Layout, steps: Steps) -> float:
    """Model FLOP utilization if every operation ran at full speed and messages took no time.

    What is missing to 1 is recomputation, bubble, uneven stages and padding, all at once.
    """
    return work(model, layout, steps).model / (layout.ranks * float(bubble(model, layout, steps).span))


def splits_backward(layout: Layout) -> bool:
    """Whether a schedule's W has something to do: tensor-parallel layers do their whole backward in I."""
    return layout.tp == 1


def schedule_of(layout: Layout, microbatches: int) -> Schedule:
    """The order of a step's actions; on one pipeline rank each micro-batch forward and back, whatever is asked for."""
    return _schedule("naive" if layout.pp == 1 else layout.schedule, layout.pp, microbatches, layout.stages)


@cache
def _schedule(name: str, ranks: int, microbatches: int, stages: int) -> Schedule:
    return SCHEDULES[name](ranks, microbatches, *(() if ranks == 1 else (stages // ranks,)))


def few(layout: Layout) -> int:
    """Micro-batches after which a rank holds no more than before; GPipe holds all."""
    return layout.microbatches if layout.schedule == "gpipe" else min(layout.microbatches, 4 * layout.pp)


def _equal_stages(layout: Layout) -> Fraction | None:
    """The bubble over the ideal time if all stages were equal, and F = I = W; ranks wait for the last one to end."""
    p, m = layout.pp, layout.microbatches
    if p == 1:
        return Fraction(0)
    if layout.schedule == "naive":
        return Fraction(p - 1)
    if layout.schedule in ("gpipe", "1f1b", "interleaved"):
        return pipeline_costs.bubble_over_ideal(p, m, layout.stages // p)
    return None
