"""What the dry run predicts of a step, beside what ranks do: payload by axis, bytes by category, and the bubble.

The step that is measured is the second one, so that optimizer states are there. Its actions let virtual time pass, a
second for each of their operations, so that the bubble is read off real messages and is that of no machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.ledger import Entry
from minitrain.comm.timeline import Span
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.composition.step import Instruments, Training
from minitrain.costs.composition_work import stage_work
from minitrain.lessons import Claim
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.pipeline_parallel.bubbles import actions_of
from minitrain.lessons.recomputation.common import AliveActivations
from minitrain.lessons.zero.common import held
from minitrain.pipeline_parallel.full.action_observers import Watch, on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Action
from minitrain.planning import plan, plan_time
from minitrain.train import build, forward_backward, train_step, update

FORMULAS = {
    "tp": "calls of each layer and micro-batch · bsh·w",
    "pp": "m · b(s/tp)h·w for each boundary and way, and the tied table",
    "dp": "w · its parameters, twice with ZeRO-1",
    "ep": "4 · rows · h·w for each mixture, and 8 for each expert",
}
SOURCES = {
    "tp": "Shoeybi et al. 2019, §3",
    "pp": "Narayanan et al. 2021, §3.2",
    "dp": "Rajbhandari et al. 2020, §7",
    "ep": "Lepikhin et al. 2020, §3.2",
}
# The groups along each axis; experts' gradients go over their replicas.
GROUPS = {"tp": ("tp",), "pp": ("pp",), "dp": ("dp", "replicas"), "ep": ("experts",)}
STATES = ("parameters", "gradients", "optimizer states")


class Measured(NamedTuple):
    """What a rank did in a step.

    Attributes:
        payload: Bytes by axis.
        held: Bytes by category, between backward and the optimizer's step.
        activations: Bytes kept for backward at their peak.
        bubble: Idle time of the busiest rank of a pipeline over the time of the step.
    """

    payload: dict[str, int]
    held: dict[str, int]
    activations: int
    bubble: float


def claims(world: World) -> list[Claim]:
    """Claims on a step in several layouts, as the dry run predicts it."""
    every = enumerate(chosen(world))
    return [claim for number, settings in every for claim in as_planned(world, settings, key=number == 0)]


def chosen(world: World) -> Iterator[Settings]:
    """A layout for each pair of axes, or where the ranks have one divisor only, for each axis; and one with experts."""
    ranks = world.size
    model, steps = lesson.small_model(ranks), replace(lesson.small_steps(ranks), dtype="float32")
    layouts = list(fitting(model, Layout(), steps, ranks))
    most = max(axes_used(layout) for layout in layouts)
    for layout in layouts:
        if axes_used(layout) == most:
            zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
            cut = replace(layout, microbatches=layout.pp, zero=zero, sequence_parallel=layout.tp > 1)
            yield Settings(model, cut, steps)
    if ranks > 1:  # experts choose equally many tokens each, so that all-to-alls can be predicted
        yield Settings(
            replace(model, experts=ranks, router="expert_choice"), Layout(dp=ranks, ep=ranks), replace(steps, clip=0.0)
        )


def axes_used(layout: Layout) -> int:
    """How many axes have more than one rank."""
    return sum(size > 1 for size in (layout.dp, layout.pp, layout.tp))


def as_planned(world: World, settings: Settings, key: bool = False) -> Iterator[Claim]:
    """Claims on one layout; where they are key, what goes along one axis, activations and the bubble."""
    model, layout, steps = settings.model, settings.layout, settings.steps
    predicted, found = plan.predict(model, layout, steps, world.rank), measure(world, settings)
    name = lesson.label(layout) + (f", {model.experts} experts" if model.experts else "")
    for number, axis in enumerate(axis for axis in ("tp", "pp", "dp", "ep") if getattr(layout, axis) > 1):
        what = f"{name}: payload of a step along {axis} on this rank"
        payload, first = found.payload.get(axis, 0), key and number == 0
        yield Claim(what, FORMULAS[axis], predicted.payload(axis), payload, "B", SOURCES[axis], key=first)
    for category in STATES:
        formula = "of its layers, over tp, and what ZeRO leaves"
        yield Claim(
            f"{name}: bytes of {category} on this rank",
            formula,
            predicted.held[category],
            found.held[category],
            "B",
            "Rajbhandari et al. 2020, §5",
        )
    if not model.experts:
        what, kept = f"{name}: bytes kept for backward at most on this rank", predicted.held["activations"]
        source = "Korthikanti et al. 2022, §4"
        # All micro-batches' numbers of tokens lie in one storage, and one that is kept keeps the others'.
        others = 8 * (layout.microbatches - 1) * model.sizes.positions * plan_time.microbatch(layout, steps)
        slack = others + gpu_slack(world.device, settings, sum(predicted.layers))
        yield Claim(what, "in flight · of its layers", kept, found.activations, "B", source, absolute=slack, key=key)
    if layout.pp > 1:
        bubble = plan_time.bubble(model, layout, steps).over_total
        what = f"{name}: bubble over the time of a step, for the operations of each stage"
        how, source = "virtual clock", SOURCES["pp"]
        yield Claim(what, "by simulation", bubble, found.bubble, "1", source, how, tolerance=1e-12, key=key)


def gpu_slack(device: torch.device, settings: Settings, layers: int) -> int:
    """Bytes that fused attention may keep on a GPU, in all micro-batches and so many layers, and on a CPU does not.

    CUDA's memory-efficient kernel, which float32 takes, fills the log of the softmax's sum up to a multiple of 32
    positions, and keeps the state of its random numbers. (Attention written out would keep the same bytes everywhere.
    But then it would not be the trainer's model.)
    """
    if device.type == "cpu":
        return 0
    layout, sizes = settings.layout, settings.model.sizes
    rows = plan_time.microbatch(layout, settings.steps) * sizes.heads // layout.tp
    return 4 * layers * layout.microbatches * rows * (-sizes.positions % 32 + 32)


def measure(world: World, settings: Settings) -> Measured:
    """A training's second step under all instruments."""
    watches: list[Watch] = []
    training = build(
        settings, world.device, Instruments(watch=lambda action: watches[0](action) if watches else nullcontext())
    )
    samples, batch = lesson.samples_of(settings), settings.steps.batch
    train_step(training, 0, 0, samples)  # makes the optimizer's states
    clock, until, after = VirtualClock(), Ledger(), Ledger()
    with clock, until, AliveActivations(*training.part.stages) as alive:
        watches.append(_keeping(training, alive, on_virtual_clock(clock, operations(settings))))
        loss = forward_backward(training, 1, batch, samples)
    each = [held(shard) for shard in training.gradients.shards]
    with after:
        update(training, 1, batch, loss)
    payload = {axis: sum(_bytes(entry) for entry in _along(training, axis, until, after)) for axis in GROUPS}
    together = {name: sum(one[name] for one in each) for name in STATES}
    training.close()
    return Measured(payload, together, alive.peak, _bubble(actions_of(clock.timeline.spans)))


def operations(settings: Settings) -> tuple[list[int], list[int], list[int]]:
    """What F, I and W of each stage cost in virtual seconds: their operations, as the dry run counts them."""
    model, layout, steps = settings.model, settings.layout, settings.steps
    sequences, stages = steps.batch // (layout.dp * layout.microbatches), layout.stages
    each = [
        stage_work(sequences, plan_time.shape_of(model), stages, stage, 0, layout.tp, layout.recompute)
        for stage in range(stages)
    ]
    return [one.forward for one in each], [one.backward for one in each], [one.weight for one in each]


def _along(training: Training, axis: str, until: Ledger, after: Ledger) -> Iterator[Entry]:
    """What went along an axis: up to the gradients, and after them. A group of one rank sends nothing.

    An axis of all ranks may be torch's group of everyone, over which loss and norm are summed after the gradients.
    """
    for name in GROUPS[axis]:
        group = getattr(training.axes, name)
        if group.size() > 1:
            yield from (entry for entry in until.entries if entry.group == group.group_desc)
            if axis == "dp":
                yield from (entry for entry in after.entries if entry.group == group.group_desc != "default_pg")


def _bytes(entry: Entry) -> int:
    return 0 if entry.operation == "receive" else entry.bytes


def _keeping(training: Training, alive: AliveActivations, watch: Watch) -> Watch:
    """Count also what a pipeline itself holds of its graphs; what autograd keeps too counts once."""
    kept: dict[tuple[int, int], list[Tensor]] = {}

    @contextmanager
    def around(action: Action) -> Iterator[None]:
        with watch(action):
            yield
        pipeline = training.pipeline
        assert pipeline is not None
        for place in [place for place in kept if place not in pipeline.held]:
            for tensor in kept.pop(place):
                alive.change(tensor, -1)
        for place, graph in pipeline.held.items():
            if place not in kept:
                tensors = [each.detach() for part in graph for each in part if isinstance(each, Tensor)]
                kept[place] = [each for each in tensors if each.is_floating_point()]  # tokens are the batch's own
                for tensor in kept[place]:
                    alive.change(tensor, 1)

    return around


def _bubble(mine: list[Span]) -> float:
    """Idle time of the busiest rank over all time, from all ranks' actions: all wait for the last, as for a norm."""
    every = [spans for spans in gather_objects(mine) if spans]
    if not every:
        return 0.0
    total = max(span.end for spans in every for span in spans) - min(span.start for spans in every for span in spans)
    busy = max(sum(span.end - span.start for span in spans) for spans in every)
    return (total - busy) / total
