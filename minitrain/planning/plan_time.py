"""How much the ranks of the dry run compute and wait in a step: operations, and the bubble of the real stages.

Settings are translated for the formulas here, too: the model's shape, the rows of routers, the order of a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import composition as costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs import pipeline as pipeline_costs
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.full.simulator import simulate
from minitrain.pipeline_parallel.schedules import SCHEDULES

# Choices of a token and capacity factor of each router as it is made by default (chapter 12), and its matrices.
_ROUTERS = {"noisy_top_k": (2, None, 2), "gshard": (2, 1.0, 1), "switch": (1, 1.25, 1), "expert_choice": (2, 1.0, 1)}
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
        most: Model FLOP utilisation if every operation ran at full speed and messages took no time: the rest after
            recomputation, bubble, uneven stages and padding.
    """

    model: int
    done: int
    tokens: int
    most: float


def shape_of(model: Model) -> costs.Shape:
    """The model in the form of `minitrain.costs.composition`."""
    gates = _ROUTERS[model.router][2]
    return costs.Shape(**vars(model.sizes), tied=model.tied, experts=model.experts, gates=gates)


def microbatch(layout: Layout, steps: Steps) -> int:
    """Sequences in a micro-batch of one data-parallel rank."""
    return steps.batch // (layout.dp * layout.microbatches)


def rows_of(model: Model, sequences: int) -> int:
    """Rows that a router makes of this many sequences, if the load is even; 0 without experts."""
    if not model.experts:
        return 0
    choices, factor, _ = _ROUTERS[model.router]
    seq = model.sizes.positions
    return sent_costs.routes(sequences * seq, seq, model.experts, min(choices, model.experts), factor)


def placement(layout: Layout) -> tuple[int, ...]:
    """For each stage the pipeline rank that holds it."""
    return schedule_of(layout, few(layout)).placement


@cache
def bubble(model: Model, layout: Layout, steps: Steps) -> Bubble:
    """How long a step makes the ranks of a pipeline wait, for the operations of the real stages.

    Simulated. If a schedule has too many actions for that, the last micro-batches are assumed to add as much as those
    before them: once full, a pipeline is periodic.
    """
    shape, sequences, m = shape_of(model), microbatch(layout, steps), layout.microbatches
    stages, rows = len(placement(layout)), rows_of(model, sequences)
    each = [
        work_costs.stage_work(sequences, shape, stages, stage, rows, layout.tp, layout.recompute)
        for stage in range(stages)
    ]
    work = [0] * layout.pp
    for stage, rank in enumerate(placement(layout)):
        work[rank] += m * sum(each[stage])
    if not splits_backward(layout):
        each = [work_costs.Work(one.forward, one.backward + one.weight, 0) for one in each]
    times: Any = tuple(zip(*each, strict=True))
    most = max(4, _SIMULATED // (3 * stages * layout.pp)) * layout.pp
    if m <= most + layout.pp:
        span = simulate(schedule_of(layout, m), *times).makespan
    else:
        before = most - layout.pp + m % layout.pp
        one, two = (simulate(schedule_of(layout, count), *times).makespan for count in (before, before + layout.pp))
        span = two + (m - before - layout.pp) * (two - one) / layout.pp
    slowest = max(range(stages), key=lambda stage: sum(each[stage]))
    return Bubble(tuple(work), span, _equal_stages(layout), slowest)


def work(model: Model, layout: Layout, steps: Steps) -> Work:
    """The operations of a step."""
    shape, rows = shape_of(model), rows_of(model, steps.batch)
    own = work_costs.step_flops(steps.batch, shape, rows)
    done = work_costs.step_flops(steps.batch, shape, rows, layout.recompute)
    most = own / (layout.ranks * float(bubble(model, layout, steps).span))
    return Work(own, done, steps.batch * shape.positions, most)


def splits_backward(layout: Layout) -> bool:
    """Whether a schedule's W has something to do: tensor-parallel layers do their whole backward in I."""
    return layout.tp == 1


@cache
def schedule_of(layout: Layout, microbatches: int) -> Schedule:
    """The order of a step's actions; on one pipeline rank each micro-batch forward and back, whatever is asked for."""
    if layout.pp == 1:
        return SCHEDULES["naive"](1, microbatches)
    chunks = layout.stages // layout.pp
    return SCHEDULES[layout.schedule](layout.pp, microbatches, chunks)


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
