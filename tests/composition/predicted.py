"""The dry run's predictions for a step, compared with the ranks: payload by axis, bytes by category, and the bubble.

The step that is measured is the second one, so that optimizer states exist. Its actions let virtual time pass, a
second for each operation that torch has counted in them. So the bubble is read off real messages and real operations,
shares nothing with the prediction, and is that of no machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple, get_args

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.ledger import Entry
from minitrain.comm.timeline import Span
from minitrain.composition.layout_settings import ContextMode, Recompute
from minitrain.composition.settings import Layout, Model, Settings, fitting
from minitrain.composition.step import Instruments, Training
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.pipeline_parallel.bubbles import actions_of
from minitrain.lessons.recomputation.common import AliveActivations
from minitrain.lessons.zero.common import held
from minitrain.models import counter_rng
from minitrain.pipeline_parallel.full.action_observers import Watch, on_virtual_clock
from minitrain.pipeline_parallel.full.actions import Action
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from minitrain.train import build, forward_backward, train_step, update

# The groups along each axis; experts' gradients go over their replicas, all others over dp and cp at once.
GROUPS = {"tp": ("tp",), "cp": ("cp",), "pp": ("pp",), "dp": ("dp_cp", "replicas"), "ep": ("experts",)}
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


class Operations(NamedTuple):
    """What a rank computes in a step, as torch counts it.

    Attributes:
        step: Operations of the whole step.
        stages: Those of F, I and W of each stage that the rank holds, 0 for others. B counts as I.
    """

    step: int
    stages: tuple[list[int], list[int], list[int]]


class Pair(NamedTuple):
    """A prediction and what was measured, which may differ by so much."""

    predicted: float
    measured: float
    slack: float = 0.0

    @property
    def holds(self) -> bool:
        return abs(self.predicted - self.measured) <= self.slack


def wrong(world: World, half: int) -> list[str]:
    """The predictions for a step in every other of several layouts, from the first or the second on, that are wrong."""
    pairs = [("one device: operations", work_of_one(world))]
    every = [*chosen(world)][half::2]
    for settings in every:
        pairs += [(f"{settings!r}: {what}", pair) for what, pair in as_planned(world, settings).items()]
    settings = next(settings for settings in every if not settings.model.sizes.experts)
    for how in get_args(Recompute)[1:]:  # all but none
        again = replace(settings, layout=replace(settings.layout, recompute=how))
        pairs.append((f"{again!r}: operations", work_of_rank(world, again, counted(world, again))))
    return [f"{name}: {pair}" for name, pair in pairs if not pair.holds]


def chosen(world: World) -> Iterator[Settings]:
    """A layout for each pair of axes, or where the ranks have one divisor only, for each axis; and two with experts.

    The pair pp and tp also without sequence parallelism, and with every block computed again; ZeRO-3; sequences that
    all ranks divide; and ordered sums. The first layout also with rotary positions. Llamas and Qwens along each axis.
    """
    ranks = world.size
    model, steps = lesson.small_model(ranks), replace(lesson.small_steps(ranks), dtype="float32")
    layouts = list(fitting(model, Layout(), steps, ranks))
    most = max(axes_used(layout) for layout in layouts)
    widest = [layout for layout in layouts if axes_used(layout) == most]
    for number, layout in enumerate(widest):
        zero = 1 if layout.dp > 1 and layout.tp > 1 else 0
        cut = replace(layout, microbatches=layout.pp, zero=zero, sequence_parallel=layout.tp > 1)
        yield Settings(model, cut, steps)
        if number == 0:
            yield Settings(replace(model, positions_kind="rope"), cut, steps)
        if layout.pp > 1 and layout.tp > 1:
            yield Settings(model, replace(cut, sequence_parallel=False, recompute="full"), steps)
    if ranks > 1:
        yield Settings(model, Layout(dp=ranks, zero=3, microbatches=2), steps)
        yield Settings(model, Layout(cp=ranks, zero=1), steps)
        yield Settings(model, Layout(dp=ranks, zero=1, microbatches=2), replace(steps, ordered_sums=True))
        for other in others(model):
            for cut in (Layout(tp=ranks), Layout(tp=ranks, sequence_parallel=True), Layout(pp=ranks, microbatches=2)):
                yield Settings(other, cut, steps)
            yield Settings(other, Layout(dp=ranks, zero=3), steps)
            for mode in get_args(ContextMode):
                yield Settings(other, Layout(cp=ranks, cp_mode=mode, zero=1), steps)
            if ranks % 2 == 0:
                yield Settings(other, Layout(dp=ranks // 2, tp=2, zero=1, sequence_parallel=True), steps)
        # Experts choose equally many tokens each, so that all-to-alls can be predicted.
        mixture, unclipped = replace(model, experts=ranks, router="expert_choice"), replace(steps, clip=0.0)
        yield Settings(mixture, Layout(dp=ranks, ep=ranks), unclipped)
        if ranks % 2 == 0:
            yield Settings(mixture, Layout(dp=ranks // 2, ep=ranks // 2, tp=2), unclipped)
            yield Settings(mixture, Layout(tp=ranks, sequence_parallel=True), unclipped)


def others(model: Model) -> Iterator[Model]:
    """A Llama and a Qwen, with fewer key heads than ranks."""
    llama = replace(model, norm="rms", mlp="swiglu", mlp_hidden=24, biases="none", positions_kind="rope", tied=False)
    llama = replace(llama, kv_heads=model.sizes.heads // 2)
    yield llama
    yield replace(llama, head_size=6, qk_norm=True, biases="qkv", tied=True)


def axes_used(layout: Layout) -> int:
    """How many axes have more than one rank."""
    return sum(size > 1 for size in (layout.dp, layout.pp, layout.tp))


def as_planned(world: World, settings: Settings) -> dict[str, Pair]:
    """What is predicted and measured in one layout."""
    model, layout, steps = settings.model, settings.layout, settings.steps
    # With cp, blocks are computed whole or left out, and the plan counts what the mask leaves of them.
    operations = None if model.sizes.experts or layout.cp > 1 else counted(world, settings)
    predicted, found = plan.predict(model, layout, steps, world.rank), measure(world, settings, operations)
    made = {category: Pair(predicted.held[category], found.held[category]) for category in STATES}
    for axis in GROUPS:
        if getattr(layout, axis) > 1 or (axis == "dp" and layout.cp > 1):
            made[axis] = Pair(predicted.payload(axis), found.payload.get(axis, 0))
    if operations:
        made["operations"] = work_of_rank(world, settings, operations)
    if (
        not model.sizes.experts and layout.recompute == "none" and layout.zero < 3
    ):  # else more is kept than autograd knows of
        kept = predicted.held["activations"]
        # All micro-batches' numbers of tokens lie in one storage, and one that is kept keeps the others'. Inputs are on
        # the first stage and targets on the last.
        others = 8 * (layout.microbatches - 1) * model.sizes.positions * plan_time.microbatch(layout, steps)
        others *= 2 if layout.pp == 1 else 1
        made["kept"] = Pair(kept, found.activations, others)
    if layout.pp > 1:
        made["bubble"] = Pair(plan_time.bubble(model, layout, steps).over_total, found.bubble, 1e-12)
    return made


def work_of_rank(world: World, settings: Settings, found: Operations) -> Pair:
    """Operations of this rank in a step."""
    layout, sizes = settings.layout, settings.model.sizes
    place = plan.coordinate(layout, world.rank).pp
    predicted = plan_time.bubble(settings.model, layout, settings.steps).work[place]
    if layout.recompute == "selective":
        # Of the core, the scores are computed again, and not their product with V: backward needs no result of that.
        tokens = layout.microbatches * plan_time.microbatch(layout, settings.steps) * sizes.positions
        layers = sum(plan.predict(settings.model, layout, settings.steps, world.rank).layers)
        predicted -= 2 * layers * tokens * sizes.positions * sizes.heads * sizes.head_size // layout.tp
    return Pair(predicted, found.step)


def work_of_one(world: World) -> Pair:
    """Operations of a step on one device, attention written out."""
    model, steps = replace(lesson.small_model(world.size), dropout=0.1), lesson.small_steps(world.size)
    settings = Settings(model, steps=steps)
    whole = lesson.plain_model(settings).to(world.device)
    inputs, targets = (part.to(world.device) for part in lesson.samples_of(settings).take(range(steps.batch)))
    counter_rng.set_position(steps.seed, 0)
    with FlopCounterMode(display=False) as counter:
        whole(inputs, targets)[1].backward()
    return Pair(plan_time.work(model, settings.layout, steps).model, counter.get_total_flops())


def measure(world: World, settings: Settings, operations: Operations | None) -> Measured:
    """A training's second step under all instruments; its actions take as long as they have operations."""
    watches: list[Watch] = []
    training = build(
        settings, world.device, Instruments(watch=lambda action: watches[0](action) if watches else nullcontext())
    )
    samples, batch = lesson.samples_of(settings), settings.steps.batch
    train_step(training, 0, 0, samples)  # makes the optimizer's states
    times = operations.stages if operations else (0, 0, 0)
    clock, until, after = VirtualClock(), Ledger(), Ledger()
    with clock, until, AliveActivations(*training.part.stages) as alive:
        watches.append(_keeping(training, alive, on_virtual_clock(clock, times)))
        loss = forward_backward(training, 1, batch, samples)
    each = [held(shard) for shard in training.gradients.shards]
    with after:
        update(training, 1, batch, loss)
    payload = {axis: sum(_bytes(entry) for entry in _along(training, axis, until, after)) for axis in GROUPS}
    together = {name: sum(one[name] for one in each) for name in STATES}
    training.close()
    return Measured(payload, together, alive.peak, _bubble(actions_of(clock.timeline.spans)))


def counted(world: World, settings: Settings) -> Operations:
    """The operations of a step on this rank.

    Of a fused attention kernel torch counts nothing on a CPU. With dropout, attention is written out; else it has the
    same operations.
    """
    model = replace(settings.model, dropout=0.1)
    found: dict[tuple[int, str], int] = {}

    @contextmanager
    def watch(action: Action) -> Iterator[None]:
        with FlopCounterMode(display=False) as counter:
            yield
        found[action.stage, "I" if action.kind == "B" else action.kind] = counter.get_total_flops()

    training = build(replace(settings, model=model), world.device, Instruments(watch=watch))
    with FlopCounterMode(display=False) as whole:
        forward_backward(training, 0, 0, lesson.samples_of(settings))
    training.close()
    forward, backward, weight = (
        [found.get((stage, kind), 0) for stage in range(settings.layout.stages)] for kind in "FIW"
    )
    return Operations(whole.get_total_flops(), (forward, backward, weight))


def _along(training: Training, axis: str, until: Ledger, after: Ledger) -> Iterator[Entry]:
    """What went along an axis: up to the gradients, and after them. A group of one rank sends nothing.

    An axis of all ranks may be torch's group of everyone, over which loss and norm are summed after the gradients.
    """
    for group in {getattr(training.axes, name) for name in GROUPS[axis]}:
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
