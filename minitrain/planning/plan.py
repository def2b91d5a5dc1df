"""The dry run: what a rank of a layout will hold, send, compute and wait for, before a single rank is started.

**Idea.** All that a step costs follows from the sizes of the model and of the layout. It is cheaper to find out here
than on a thousand GPUs that a layout does not fit into memory, or idles half of the time. It takes a second, and no
torch: this file and its imports can be read where torch is not installed.

**Source.** The formulas are those of the chapters, put together in `minitrain.costs.composition` and its three
neighbours; the time of a whole training is that of Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", §5.1.
**Predicted.** What each rank holds at its peak, except for gradients of activations, what a kernel or a collective
needs while it runs, messages in flight, what ZeRO-3 has gathered, and what the allocator cannot use. Also what a ledger
would count in a step: payloads of collectives, bytes of pipeline messages. Also called memory and compute calculator,
auto-tuner's cost model, simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import composition as costs
from minitrain.costs import composition_kept as kept_costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.planning.plan_time import few, microbatch, placement, rows_of, schedule_of, shape_of, splits_backward

if TYPE_CHECKING:
    from minitrain.comm import World
else:
    World = Any  # its module imports torch, and the dry run does without

ITEM = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


class Coordinate(NamedTuple):
    """A rank's place on the axes; tp varies fastest, then dp, then pp."""

    pp: int = 0
    dp: int = 0
    tp: int = 0


class Sent(NamedTuple):
    """One kind of data that a rank sends in a step.

    Attributes:
        axis: "tp", "pp", "dp", "ep", or "all" ranks.
        what: Its description.
        verb: As the ledger calls it: "all_reduce", "send", … .
        bytes: Payload of a collective, bytes of messages.
    """

    axis: str
    what: str
    verb: str
    bytes: int


@dataclass(frozen=True)
class Plan:
    """What one rank holds and sends.

    Attributes:
        coordinate: Which rank.
        layers: Layers of each of its stages.
        parameters: Number of parameters that it has in a step, those of ZeRO's other shards included.
        held: Bytes of "parameters", "gradients", "optimizer states", and "activations" at their peak.
        sends: The data that it sends in a step.
    """

    coordinate: Coordinate
    layers: tuple[int, ...]
    parameters: int
    held: dict[str, int]
    sends: tuple[Sent, ...]

    def payload(self, axis: str | None = None, verb: str | None = None) -> int:
        """Bytes of a step, of one axis and one verb where they are named."""
        return sum(each.bytes for each in self.sends if axis in (None, each.axis) and verb in (None, each.verb))


def predict(model: Model, layout: Layout, steps: Steps, at: int | Coordinate = 0) -> Plan:
    """What a rank holds and sends.

    Args:
        model: The model.
        layout: The layout.
        steps: Batch, dtype and optimizer are looked at.
        at: The rank by number, or its coordinate.

    Raises:
        ValueError: The layout does not fit, or has no such rank.
    """
    check(model, layout, steps)
    place = coordinate(layout, at) if isinstance(at, int) else _on_axes(layout, at)
    shape, plan = shape_of(model), schedule_of(layout, few(layout))
    own = plan.stages_of(place.pp)
    experts = costs.experts_of(model.experts, layout.ep, place.dp % layout.ep) if model.experts else range(0)
    parameters = costs.rank_parameters(shape, plan.stages, own, layout.tp, experts)
    counts = costs.layer_counts(shape.layers, plan.stages)
    replicas, item = layout.dp // layout.ep, ITEM[steps.dtype]
    states = costs.model_states(parameters, layout.zero, layout.dp, replicas, item, steps.optimizer)
    return Plan(
        place,
        tuple(counts[stage] for stage in own),
        sum(each.elements for each in parameters),
        states | {"activations": _activations(model, layout, steps, place)},
        tuple(each for each in _sends(model, layout, steps, place, parameters) if each.bytes),
    )


def coordinate(layout: Layout, rank: int) -> Coordinate:
    """The place of a rank, by number.

    Raises:
        ValueError: There is no such rank.
    """
    if not 0 <= rank < layout.ranks:
        raise ValueError(f"rank={rank} is none of {layout.ranks} ranks; use 0 to {layout.ranks - 1}")
    rest, tp = divmod(rank, layout.tp)
    pp, dp = divmod(rest, layout.dp)
    return Coordinate(pp, dp, tp)


def _on_axes(layout: Layout, at: Coordinate) -> Coordinate:
    for axis, value in at._asdict().items():
        if not 0 <= value < getattr(layout, axis):
            raise ValueError(f"{axis}={value} is no place on an axis of {getattr(layout, axis)} ranks")
    return at


def _activations(model: Model, layout: Layout, steps: Steps, place: Coordinate) -> int:
    shape, sequences, item = shape_of(model), microbatch(layout, steps), ITEM[steps.dtype]
    plan, rows, cut = schedule_of(layout, few(layout)), rows_of(model, sequences), (layout.tp, layout.sequence_parallel)
    dropout = model.dropout > 0  # which fused attention does not have

    def layer(number: int, recompute: str) -> int:
        if shape.is_mixture(number):
            return kept_costs.mixture_kept(sequences, shape, rows, layout.tp, recompute, item, dropout)
        return kept_costs.layer_kept(sequences, shape, *cut, recompute, item, not dropout, dropout)

    kept, output, again = {}, {}, {}
    for stage in plan.stages_of(place.pp):
        layers = costs.layers_of(shape.layers, plan.stages, stage)
        numbers, output[stage] = kept_costs.ends_kept(
            sequences, shape, stage == 0, stage == plan.stages - 1, *cut, item, dropout
        )
        kept[stage] = numbers + output[stage] + sum(layer(number, layout.recompute) for number in layers)
        again[stage] = max(layer(number, "none") - layer(number, layout.recompute) for number in layers)
    row = [(action.stage, action.kind) for action in plan.actions[place.pp]]
    if not splits_backward(layout):
        row = [(stage, "B" if kind == "I" else kind) for stage, kind in row if kind != "W"]
    return kept_costs.peak_kept(row, kept, output, again)


def _boundary(model: Model, layout: Layout, steps: Steps) -> int:
    """Bytes of a micro-batch between two stages."""
    size = microbatch(layout, steps) * model.sizes.positions * model.sizes.hidden * ITEM[steps.dtype]
    return size // layout.tp if layout.sequence_parallel else size


def _sends(
    model: Model, layout: Layout, steps: Steps, place: Coordinate, parameters: list[costs.Parameter]
) -> list[Sent]:
    shape, sequences, item, m = shape_of(model), microbatch(layout, steps), ITEM[steps.dtype], layout.microbatches
    holders = placement(layout)
    stages = [stage for stage, rank in enumerate(holders) if rank == place.pp]
    found = []
    for stage in stages:
        layers, ends = costs.layers_of(shape.layers, len(holders), stage), (stage == 0, stage == len(holders) - 1)
        cut = layout.tp, layout.sequence_parallel, layout.recompute, item
        for verb, size in sent_costs.tensor_payload(sequences, shape, layers, *ends, *cut).items():
            found.append(Sent("tp", "activations and their gradients", verb, m * size))
        mixtures = sum(shape.is_mixture(layer) for layer in layers)
        where = layout.ep, place.dp % layout.ep, layout.recompute == "full", item
        for verb, size in sent_costs.expert_payload(rows_of(model, sequences), shape, mixtures, *where).items():
            found.append(Sent("ep", "tokens to experts and back", verb, m * size))
    if layout.sequence_parallel:
        size = sent_costs.partial_payload(parameters, layout.zero, layout.dp, place.dp, item)
        found.append(Sent("tp", "gradients of norms, row biases, positions", "all_reduce", size))
    sent = sent_costs.pipeline_sent(_boundary(model, layout, steps), holders, m, place.pp)
    found.append(Sent("pp", "activations and their gradients", "send", sent))
    found.append(
        Sent("pp", "the tied table's gradient", "send", sent_costs.tied_sent(shape, holders, layout.tp, place.pp, item))
    )
    replicas = layout.dp // layout.ep
    for verb, size in sent_costs.data_payload(parameters, layout.zero, layout.dp, replicas, m, item).items():
        found.append(Sent("dp", "parameters" if verb == "all_gather" else "gradients", verb, size))
    found.append(Sent("all", "loss and squared norm", "all_reduce", 16 if layout.ranks > 1 else 0))
    return found


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
