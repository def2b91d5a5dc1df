"""What a step of a layout takes on a cluster: computing, idling, and the messages that hide behind nothing.

**Idea.** The dry run knows how many operations each rank computes, how long a pipeline idles, and which bytes leave a
rank on which axis. Divided by what a GPU and its links reach, they are seconds. What remains is to say which messages
can travel while something is computed.

Open `planning/plan.py` first, then `planning/full/plan_time.py`, and this file.
**Source.** The bubble is simulated as in Narayanan et al. 2021, §2.2; messages as in `minitrain.costs.fabric`.
**Predicted.** A model, not a measurement: on published runs its median error is 5 %, and one in ten is off by more than
14 %. Products run at one part of the peak, attention's core at another; norms, activations, loss and optimizer move
bytes. Messages overlap as a good implementation lets them, which is more than this project's own trainer does (see
docs/training.md), and half of what hides is lost all the same. Tensor, context and expert parallelism wait for their
messages; those of ring attention hide behind its cores. Gradients hide behind backward: behind that of the last
micro-batch in stages 0 and 1, behind all in 2 and 3. Stages 1 and 2 gather parameters during the next forward; stage 3
during all forwards, and again during all backwards. Messages of a pipeline hide behind other micro-batches. What no
constant knows is the software: the same GPUs are a fifth faster with 2025's kernels than with 2023's. Also called
performance model, auto-tuner's cost model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import composition, time_bar, vocabulary
from minitrain.costs.composition_work import head_work
from minitrain.costs.fabric import DEFAULT, Fabric, pieces
from minitrain.costs.memory import ROOM
from minitrain.costs.roofline import Machine
from minitrain.costs.time_bar import ADAM, HALF, LOSS, Bar, Reached, overlap
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from minitrain.planning.full.plan_time import busy
from minitrain.planning.plan import Coordinate

WAITED = ("tp", "cp", "ep")  # axes whose messages hide behind nothing, but for a ring's along cp
# Bytes for each score of attention that is written out, in 16 bits: written, through the softmax, through dropout with
# its mask, and read.
_SCORE = 2 + 4 + 5 + 2


@dataclass(frozen=True)
class Cluster:
    """GPUs, some of them in each node, and what training reaches of their data sheet.

    Attributes:
        machine: The GPU, with its links within a node and across nodes.
        fabric: How many are in a node, and what their messages reach; ranks fill nodes in order.
        reached: What training reaches of the GPU: by default what the course's bars assume.
    """

    machine: Machine
    fabric: Fabric = DEFAULT
    reached: Reached = HALF

    @property
    def per_node(self) -> int:
        """GPUs in a node."""
        return self.fabric.per_node


class Seconds(NamedTuple):
    """Of a stage for one micro-batch: forward, backward for the input with what is computed again, and for weights."""

    forward: float
    backward: float
    weight: float


def fitted(machine: Machine, fabric: Fabric = DEFAULT, products: float | None = None) -> Cluster:
    """A cluster of such GPUs with what published trainings reached of them."""
    return Cluster(machine, fabric, time_bar.fitted(machine, products))


def step_time(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Bar:
    """The seconds of a step on the pipeline rank that computes most.

    Raises:
        ValueError: The layout does not fit the model.
    """
    check(model, layout, steps)
    return any_step_time(model, layout, steps, cluster)


def any_step_time(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Bar:
    """As `step_time`, also of a layout that the trainer would refuse."""
    each = stage_seconds(model, layout, steps, cluster)
    return _bar(model, layout, steps, cluster, float(plan_time.span_of(layout, each)))


def alone(model: Model, steps: Steps, cluster: Cluster) -> float:
    """Seconds of a step on a single GPU that has room for the whole model, and computes nothing again."""
    return any_step_time(model, Layout(), steps, cluster).step


def least_time(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> float:
    """Seconds that a step of a layout that fits the model takes at least: without simulating its pipeline, at once.

    Messages are those of `step_time`, and the time of the pipeline is `plan_time.least_span`.
    """
    each = stage_seconds(model, layout, steps, cluster)
    return _bar(model, layout, steps, cluster, plan_time.least_span(layout, each, busy(layout, each))).step


def waited_for(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> float:
    """Seconds of messages that hide behind nothing, on the pipeline rank that computes most: those of tp, cp and ep."""
    sent = _seconds_sent(model, layout, steps, cluster)
    return sum(seconds for (verb, axis), seconds in sent.items() if axis in WAITED and verb != "send")


def stage_seconds(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> tuple[Seconds, ...]:
    """Seconds of each stage for one micro-batch: products, attention's core, and what memory limits."""
    return _stage_seconds(model, replace(layout, zero=0, ep=1), steps, cluster)


@cache
def _stage_seconds(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> tuple[Seconds, ...]:
    shape, batch, stages = plan_time.shape_of(model), plan_time.microbatch(layout, steps), layout.stages
    tokens, item = batch * shape.positions // layout.cp, plan.ITEM[steps.dtype]
    machine, fused = cluster.machine, model.dropout == 0
    speed = cluster.reached.products * machine.flops
    operations = plan_time.core_forward(model, layout, steps)
    if cluster.reached.core is not None and fused:
        # The kernel leaves out what is masked, and computes the scores again: 5 products in backward for 2.
        core = operations / 2 / (cluster.reached.core * machine.flops)
        backward_core = 2.5 * core
    else:
        # 4d operations for each score of a head, which is written and read.
        scores = operations / (2 * (shape.width + shape.mixed_width)) * shape.heads
        core = operations / speed + _SCORE * scores * item / 2 / machine.memory * (cluster.reached.moved > 0)
        backward_core = 2 * core
    # Outside attention and MLP, tensor-parallel ranks hold activations whole, unless those are cut, too.
    cut = layout.tp if layout.sequence_parallel else 2 * layout.tp / (1 + layout.tp)
    moved = cluster.reached.moved * tokens * shape.hidden * item / 2 / cut / machine.memory
    loss = LOSS * tokens * vocabulary.rows(shape.vocabulary, layout.tp) / machine.memory * (cluster.reached.moved > 0)
    # Layers differ in having experts or not.
    first = {shape.is_mixture(layer): layer for layer in range(shape.layers)}
    products_of = {kind: plan_time.products_forward(model, layout, steps, at) / speed for kind, at in first.items()}
    found = []
    for stage in range(stages):
        forward = backward = weight = 0.0
        for layer in composition.layers_of(shape.layers, stages, stage):
            products = products_of[shape.is_mixture(layer)]
            one = products + core + moved / 3
            again = {"none": 0.0, "selective": core, "full": one}[layout.recompute]
            forward, weight = forward + one, weight + products
            backward += products + backward_core + 2 / 3 * moved + again
        if stage == stages - 1:
            head = head_work(batch, shape, layout.tp, layout.cp).forward / speed
            forward, backward, weight = forward + head + loss / 3, backward + head + 2 / 3 * loss, weight + head
        found.append(Seconds(forward, backward, weight))
    return tuple(found)


def _busiest(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Coordinate:
    work = busy(layout, stage_seconds(model, layout, steps, cluster))
    return Coordinate(pp=work.index(max(work)))


def _bar(model: Model, layout: Layout, steps: Steps, cluster: Cluster, span: float) -> Bar:
    """The seconds of a step, if its pipeline takes `span` seconds from the first start to the last end."""
    work = busy(layout, stage_seconds(model, layout, steps, cluster))
    # Recomputation is apart: it takes time and is no work of the model.
    once = replace(layout, recompute="none")
    compute = max(busy(layout, stage_seconds(model, once, steps, cluster)))
    again, idle = max(work) - compute, max(0.0, span - max(work)) if layout.pp > 1 else 0.0
    sent = _seconds_sent(model, layout, steps, cluster)
    # Backward does twice what forward does, and what is computed again.
    forward, backward, m = compute / 3, 2 / 3 * compute + again, layout.microbatches
    gradients = sent["all_reduce", "dp"] + sent["reduce_scatter", "dp"]
    if layout.zero == 3:
        # One gathering for forward, one for backward.
        half = sent["all_gather", "dp"] / 2
        data = [(half, forward), (half + gradients, backward)]
    else:
        # Stage 2 sends behind every micro-batch's backward, stages 0 and 1 behind the last one's.
        data = [(gradients, backward / (1 if layout.zero == 2 else m)), (sent["all_gather", "dp"], forward / m)]
    # A single micro-batch has no other to hide behind.
    boundary = (sent["send", "pp"], (compute + again) * (m > 1))
    # Each rank of a ring attends to the keys at hand while the next ones come.
    ring = (sent.get(("send", "cp"), 0.0), _cores(model, layout, steps, cluster) if layout.cp > 1 else 0.0)
    hidden, exposed = overlap(*data, boundary, ring, (waited_for(model, layout, steps, cluster), 0.0))
    compute += _optimizer(model, layout, cluster)
    return Bar(compute, hidden, exposed + cluster.reached.contended * hidden, again, idle)


def _cores(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> float:
    """Seconds of attention's cores in a step, forward and backward, on the pipeline rank that computes most."""
    speed = (cluster.reached.core or cluster.reached.products) * cluster.machine.flops
    return (
        plan_time.core(model, layout, steps)
        / speed
        * (3.5 / 6 if cluster.reached.core is not None and model.dropout == 0 else 1)
    )


def _optimizer(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds in which the optimizer moves the states of the parameters that a rank steps."""
    own = plan_time.parameters_of(model, layout) / (layout.dp * layout.cp if layout.zero else 1)
    return ADAM * own / cluster.machine.memory * (cluster.reached.moved > 0)


def _seconds_sent(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> dict[tuple[str, str], float]:
    """Seconds for which messages occupy the busiest rank, by verb and axis; a ring sends (n−1)/n of a payload."""
    place = _busiest(model, layout, steps, cluster)
    return _seconds_from(place, model, layout, steps, cluster.machine, cluster.fabric)


@cache  # A fit asks for the same messages again and again.
def _seconds_from(
    place: Coordinate, model: Model, layout: Layout, steps: Steps, machine: Machine, fabric: Fabric
) -> dict[tuple[str, str], float]:
    sharers, inner = layout.dp * layout.cp, layout.tp
    axes = {"tp": (layout.tp, 1), "cp": (layout.cp, inner), "ep": (layout.ep, inner), "dp": (sharers, inner)}
    axes["pp"] = (layout.pp, inner * sharers)
    seconds = dict.fromkeys(((verb, "dp") for verb in ("all_reduce", "reduce_scatter", "all_gather")), 0.0)
    seconds["send", "pp"] = 0.0
    for each in plan.sent(model, layout, steps, place):
        if each.axis in axes:
            ranks, stride = axes[each.axis]
            speed = fabric.ring(machine, ranks, stride)
            share = (2 if each.verb == "all_reduce" else 1) * (ranks - 1) / ranks
            if each.verb in ("send", "all_to_all"):
                share = 1 if each.verb == "send" else fabric.leaving(ranks, stride)
                speed = fabric.message(machine, ranks, stride)
            way = (each.verb, each.axis)
            seconds[way] = seconds.get(way, 0.0) + share * each.bytes / speed
    for axis, rings in _rings(model, layout, place).items():
        ways = [way for way in seconds if way[1] == axis and way[0] != "send" and seconds[way]]
        if total := sum(seconds[way] for way in ways):
            longer = 1 + rings * fabric.wait(*axes[axis]) / total
            seconds |= {way: longer * seconds[way] for way in ways}
    return seconds


def _rings(model: Model, layout: Layout, place: Coordinate) -> dict[str, int]:
    """Rings that a rank goes around in a step, along tp and along dp: one for an all-gather, two for an all-reduce."""
    own, m = plan_time.layers_on(model, layout, place.pp), layout.microbatches
    # Two all-reduces of a layer in forward and two in backward. Sequence parallelism gathers two inputs a second time:
    # the hops of these gathers hide behind the products for the inputs' gradients (chapter 09). Their bytes are waited
    # for like all others, because the constants were fitted so.
    inside = (8 + 4 * (layout.recompute == "full")) * own * m
    held = plan_time.parameters_of(model, layout)
    # What is gathered layer by layer also travels layer by layer.
    parts = own + 1 if layout.zero >= 2 else pieces(held, layout.dp * layout.cp, own)
    return {"tp": inside, "dp": {0: 2, 1: 2, 2: m + 1, 3: 3 * m}[layout.zero] * parts}


def fits(model: Model, layout: Layout, steps: Steps, machine: Machine) -> bool:
    """Whether every rank's part fits the GPU, with the room that the dry run leaves for what it does not count."""
    check(model, layout, steps)
    # The first pipeline rank usually holds most, so that a layout that does not fit is recognized at once.
    return all(size <= (1 - ROOM) * machine.size for size in _held(model, layout, steps))


def most_held(model: Model, layout: Layout, steps: Steps) -> int:
    """Bytes on the rank that holds most."""
    check(model, layout, steps)
    return max(_held(model, layout, steps))


def _held(model: Model, layout: Layout, steps: Steps) -> Iterator[int]:
    """Bytes on a rank of each pipeline rank."""
    return (sum(plan.held(model, layout, steps, Coordinate(pp)).values()) for pp in range(layout.pp))
