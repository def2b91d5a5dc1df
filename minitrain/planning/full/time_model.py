"""What a step of a layout takes on a cluster: computing, idling, and the messages that hide behind nothing.

**Idea.** The dry run knows how many operations each rank computes, how long a pipeline idles, and which bytes leave a
rank on which axis. Two speeds turn them into seconds: those of the products, and those of the link that an axis uses.
What remains is to say which messages can travel while something is computed.

Open `planning/plan.py` first, then `planning/full/plan_time.py`, and this file.
**Source.** The bubble is simulated as in Narayanan et al. 2021, §2.2; links of two speeds as in their §3.2 and §5.
**Predicted.** A model, not a measurement: messages have no latency, links are never shared, products always run at the
same part of the peak, and optimizer, norms and loss take no time. Messages overlap as a good implementation lets them,
which is more than this project's own trainer does (see docs/training.md). Tensor, context and expert parallelism wait
for their messages; those of a ring hide behind attention. Gradients hide behind backward: behind that of the last
micro-batch in stages 0 and 1, behind all in 2 and 3. Stages 1 and 2 gather parameters during the next forward; stage 3
during all forwards, and again during all backwards. Messages of a pipeline hide behind other micro-batches. Also called
performance model, auto-tuner's cost model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs.memory import ROOM
from minitrain.costs.roofline import Machine
from minitrain.costs.time_bar import Bar, overlap
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from minitrain.planning.plan import Coordinate, Sent

# What products reach of a GPU's peak in plans of large models; with it, steps come close to what was published
# (`minitrain.planning.full.published`). The course's bar of time, which begins with small models, assumes half.
REACHED = 0.6
WAITED = ("tp", "cp", "ep")  # axes whose messages hide behind nothing, but for a ring's along cp


@dataclass(frozen=True)
class Cluster:
    """GPUs, some of them in each node.

    Attributes:
        machine: The GPU, with its links within a node and across nodes.
        per_node: GPUs in a node; ranks fill nodes in order.
        reached: What products reach of the GPU's peak.
    """

    machine: Machine
    per_node: int = 8
    reached: float = 0.5

    def link(self, ranks: int, stride: int) -> float:
        """Bytes per second between ranks that are `stride` apart: NVLink if all of them are in one node."""
        return self.machine.link if ranks * stride <= self.per_node else self.machine.network


def step_time(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> Bar:
    """The seconds of a step on the pipeline rank that computes most.

    Raises:
        ValueError: The layout does not fit the model.
    """
    check(model, layout, steps)
    return _bar(model, layout, steps, cluster, float(plan_time.bubble(model, layout, steps).span))


def least_time(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> float:
    """Seconds that a step of a layout that fits the model takes at least: without simulating its pipeline, at once.

    Messages are those of `step_time`, and the time of the pipeline is `plan_time.least_span`.
    """
    return _bar(model, layout, steps, cluster, plan_time.least_span(model, layout, steps)).step


def waited_for(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> float:
    """Seconds of messages that hide behind nothing, on the pipeline rank that computes most: those of tp, cp and ep."""
    sent = _sent_by_busiest(model, layout, steps, cluster)
    return sum(seconds for (verb, axis), seconds in sent.items() if axis in WAITED and verb != "send")


def _sent_by_busiest(model: Model, layout: Layout, steps: Steps, cluster: Cluster) -> dict[tuple[str, str], float]:
    work = plan_time.busy(model, layout, steps)
    place = Coordinate(pp=work.index(max(work)))
    return _seconds_sent(plan.sent(model, layout, steps, place), layout, cluster)


def _bar(model: Model, layout: Layout, steps: Steps, cluster: Cluster, span: float) -> Bar:
    """The seconds of a step, if its pipeline takes `span` operations from the first start to the last end."""
    work, speed = plan_time.busy(model, layout, steps), cluster.reached * cluster.machine.flops
    # Recomputation is apart: it takes time and is no work of the model.
    compute = max(plan_time.busy(model, replace(layout, recompute="none"), steps)) / speed
    again, idle = max(work) / speed - compute, (span - max(work)) / speed
    sent = _sent_by_busiest(model, layout, steps, cluster)
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
    cores = plan_time.core(model, layout, steps) / speed if layout.cp > 1 else 0.0
    ring = (sent.get(("send", "cp"), 0.0), cores)
    waited = sum(seconds for (verb, axis), seconds in sent.items() if axis in WAITED and verb != "send")
    return Bar(compute, *overlap(*data, boundary, ring, (waited, 0.0)), again, idle)


def _seconds_sent(sends: Sequence[Sent], layout: Layout, cluster: Cluster) -> dict[tuple[str, str], float]:
    """Seconds for which messages occupy the rank's link, by verb and axis; a ring sends (n−1)/n of a payload."""
    sharers, inner = layout.dp * layout.cp, layout.tp
    axes = {"tp": (layout.tp, 1), "cp": (layout.cp, inner), "ep": (layout.ep, inner), "dp": (sharers, inner)}
    axes["pp"] = (layout.pp, inner * sharers)
    seconds = dict.fromkeys(((verb, "dp") for verb in ("all_reduce", "reduce_scatter", "all_gather")), 0.0)
    seconds["send", "pp"] = 0.0
    for each in sends:
        if each.axis in axes:
            ranks, stride = axes[each.axis]
            share = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1}.get(each.verb, (ranks - 1) / ranks)
            way, bandwidth = (each.verb, each.axis), cluster.link(ranks, stride)
            seconds[way] = seconds.get(way, 0.0) + share * each.bytes / bandwidth
    return seconds


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
