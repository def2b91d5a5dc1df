"""What a step of a layout takes on a cluster: computing, idling, and the messages that hide behind nothing.

**Idea.** The dry run knows how many operations each rank computes, how long a pipeline idles, and which bytes leave a
rank on which axis. Two speeds turn them into seconds: those of the products, and those of the link that an axis uses.
What remains is to say which messages can travel while something is computed.

**Source.** The bubble is simulated as in Narayanan et al. 2021, §2.2; links of two speeds as in their §3.2 and §5.
**Predicted.** A model, not a measurement: messages have no latency, links are never shared, products always run at the
same part of the peak, and optimizer, norms and loss take no time. Messages overlap as a good implementation lets them,
which is more than this project's own trainer does (see docs/training.md). Tensor and expert parallelism wait for their
messages. Gradients hide behind backward: behind that of the last micro-batch in stages 0 and 1, behind all in 2 and 3.
Stages 1 and 2 gather parameters during the next forward; stage 3 during all forwards, and again during all backwards.
Messages of a pipeline hide behind other micro-batches. Also called performance model, auto-tuner's cost model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs.memory import ROOM
from minitrain.costs.roofline import Machine
from minitrain.costs.time_bar import Bar, overlap
from minitrain.planning import plan_time
from minitrain.planning.plan import Coordinate, Plan, predict


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
    waits, speed = plan_time.bubble(model, layout, steps), cluster.reached * cluster.machine.flops
    compute = max(plan_time.bubble(model, replace(layout, recompute="none"), steps).work) / speed
    again, idle = waits.ideal / speed - compute, float(waits.span - waits.ideal) / speed
    sent = _seconds_sent(predict(model, layout, steps, Coordinate(pp=waits.work.index(waits.ideal))), layout, cluster)
    forward, backward, m = compute / 3, 2 / 3 * compute + again, layout.microbatches
    gradients = sent["all_reduce", "dp"] + sent["reduce_scatter", "dp"]
    if layout.zero == 3:
        half = sent["all_gather", "dp"] / 2
        data = [(half, forward), (half + gradients, backward)]
    else:
        data = [(gradients, backward / (1 if layout.zero == 2 else m)), (sent["all_gather", "dp"], forward / m)]
    boundary = (sent["send", "pp"], (compute + again) * (m > 1))
    waited = sum(seconds for (_, axis), seconds in sent.items() if axis in ("tp", "ep"))
    return Bar(compute, *overlap(*data, boundary, (waited, 0.0)), again, idle)


def _seconds_sent(plan: Plan, layout: Layout, cluster: Cluster) -> dict[tuple[str, str], float]:
    """Seconds for which messages occupy the rank's link, by verb and axis; a ring sends (n−1)/n of a payload."""
    strides = {"tp": 1, "ep": layout.tp, "dp": layout.tp, "pp": layout.tp * layout.dp}
    seconds = dict.fromkeys(((verb, "dp") for verb in ("all_reduce", "reduce_scatter", "all_gather")), 0.0)
    seconds["send", "pp"] = 0.0
    for axis, stride in strides.items():
        ranks = getattr(layout, axis)
        for verb in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send"):
            share = {"all_reduce": 2 * (ranks - 1) / ranks, "send": 1}.get(verb, (ranks - 1) / ranks)
            if size := plan.payload(axis, verb):
                seconds[verb, axis] = share * size / cluster.link(ranks, stride)
    return seconds


def fits(model: Model, layout: Layout, steps: Steps, machine: Machine) -> bool:
    """Whether every rank's part fits the GPU, with the room that the dry run leaves for what it does not count."""
    return most_held(model, layout, steps) <= (1 - ROOM) * machine.size


def most_held(model: Model, layout: Layout, steps: Steps) -> int:
    """Bytes on the rank that holds most."""
    plans = (predict(model, layout, steps, Coordinate(pp)) for pp in range(layout.pp))
    return max(sum(plan.held.values()) for plan in plans)
