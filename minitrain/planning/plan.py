"""The dry run: what a rank of a layout will hold, send, compute and wait for, before a single rank is started.

**Idea.** All that a step costs follows from the sizes of the model and of the layout. It is cheaper to find out here
than on a thousand GPUs that a layout does not fit into memory, or idles half of the time. It takes a second, and no
torch: this file and its imports can be read where torch is not installed.

**Source.** The formulas are those of the chapters, put together in `minitrain.costs.composition` and its four
neighbors; the time of a whole training is that of Narayanan et al. 2021, "Efficient Large-Scale Language Model
Training on GPU Clusters Using Megatron-LM", §5.1.
**Predicted.** What each rank holds at its peak, except for gradients of activations, what a kernel or a collective
needs while it runs, messages in flight, what ZeRO-3 has gathered, and what the allocator cannot use. Also what a ledger
would count in a step: payloads of collectives, bytes of pipeline messages. Also called memory and compute calculator,
auto-tuner's cost model, simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import composition as costs
from minitrain.costs import composition_kept as kept_costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs.composition_states import Sharing, model_states
from minitrain.planning.full.plan_time import (
    few,
    microbatch,
    own_shape,
    placement,
    rows_of,
    schedule_of,
    shape_of,
    splits_backward,
)

if TYPE_CHECKING:
    from minitrain.comm import World
else:
    World = Any  # its module imports torch, and the dry run does without

ITEM = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}


def gradient_item(steps: Steps) -> int:
    """Bytes of a gradient's element."""
    return ITEM[steps.dtype if steps.reduce_dtype == "same" else steps.reduce_dtype]


def sharing(layout: Layout, steps: Steps) -> Sharing:
    """How data-parallel ranks share what they hold."""
    ranks = layout.dp * layout.cp, layout.dp // layout.ep
    return Sharing(layout.zero, *ranks, ITEM[steps.dtype], gradient_item(steps), steps.optimizer)


class Coordinate(NamedTuple):
    """A rank's place on the axes; tp varies fastest, then cp, then dp, then pp."""

    pp: int = 0
    dp: int = 0
    tp: int = 0
    cp: int = 0


class Sent(NamedTuple):
    """One kind of data that a rank sends in a step.

    Attributes:
        axis: "tp", "cp", "pp", "dp" (with cp, over dp · cp ranks), "ep", or "all" ranks.
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
    parameters = _parameters(model, layout, place)
    counts = costs.layer_counts(model.sizes.layers, layout.stages)
    return Plan(
        place,
        tuple(counts[stage] for stage, rank in enumerate(placement(layout)) if rank == place.pp),
        sum(each.elements for each in parameters),
        held(model, layout, steps, place),
        sent(model, layout, steps, place),
    )


def held(model: Model, layout: Layout, steps: Steps, place: Coordinate) -> dict[str, int]:
    """Bytes that a rank of a layout that fits the model holds, as `Plan.held`; without its messages, in less time."""
    # Neither micro-batches nor recomputation change states, and a search asks for many layouts that differ in these.
    alike = replace(layout, microbatches=layout.pp, recompute="none", sequence_parallel=False)
    states = _states(model, alike, sharing(layout, steps), place)
    if steps.ordered_sums and place.dp > 0:  # the first rank begins the sum, and adds as it goes
        states = states | {"gradients": layout.microbatches * states["gradients"]}
    return states | {"activations": _activations(model, layout, steps, place)}


def _parameters(model: Model, layout: Layout, place: Coordinate) -> list[costs.Parameter]:
    holders = placement(layout)
    own = [stage for stage, rank in enumerate(holders) if rank == place.pp]
    shape = shape_of(model)
    experts = costs.experts_of(shape.experts, layout.ep, place.dp % layout.ep) if shape.experts else range(0)
    return costs.rank_parameters(shape, len(holders), own, layout.tp, experts)


@cache
def _states(model: Model, layout: Layout, shared: Sharing, place: Coordinate) -> dict[str, int]:
    return model_states(_parameters(model, layout, place), shared)


def coordinate(layout: Layout, rank: int) -> Coordinate:
    """The place of a rank, by number.

    Raises:
        ValueError: There is no such rank.
    """
    if not 0 <= rank < layout.ranks:
        raise ValueError(f"rank={rank} is none of {layout.ranks} ranks; use 0 to {layout.ranks - 1}")
    rest, tp = divmod(rank, layout.tp)
    rest, cp = divmod(rest, layout.cp)
    pp, dp = divmod(rest, layout.dp)
    return Coordinate(pp, dp, tp, cp)


def with_most(layout: Layout, steps: Steps, pp: int = 0) -> Coordinate:
    """The data-parallel rank that holds and sends the most: any, but with ordered sums the last but one."""
    return Coordinate(pp, max(layout.dp - 2, min(1, layout.dp - 1)) if steps.ordered_sums else 0)


def _on_axes(layout: Layout, at: Coordinate) -> Coordinate:
    for axis, value in at._asdict().items():
        if not 0 <= value < getattr(layout, axis):
            raise ValueError(f"{axis}={value} is no place on an axis of {getattr(layout, axis)} ranks")
    return at


def _activations(model: Model, layout: Layout, steps: Steps, place: Coordinate) -> int:
    shape, sequences, item = own_shape(model, layout), microbatch(layout, steps), ITEM[steps.dtype]
    plan, rows, cut = schedule_of(layout, few(layout)), rows_of(model, sequences), (layout.tp, layout.sequence_parallel)
    dropout = model.dropout > 0  # which fused attention does not have
    mode = layout.cp_mode if layout.cp > 1 else None

    @cache  # by kind: layers differ only in having experts or not
    def kept_by(mixture: bool, recompute: str) -> int:
        if mixture:
            return kept_costs.mixture_kept(sequences, shape, rows, *cut, recompute, item, dropout)
        return kept_costs.layer_kept(sequences, shape, *cut, recompute, item, not dropout, dropout, mode, layout.cp)

    def layer(number: int, recompute: str) -> int:
        return kept_by(shape.is_mixture(number), recompute)

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
    size = microbatch(layout, steps) * model.sizes.positions // layout.cp * model.sizes.hidden * ITEM[steps.dtype]
    return size // layout.tp if layout.sequence_parallel else size


def sent(model: Model, layout: Layout, steps: Steps, place: Coordinate) -> tuple[Sent, ...]:
    """What a rank of a layout that fits the model sends, as `Plan.sends`; without what it holds, in less time."""
    return tuple(each for each in _sends(model, layout, steps, place) if each.bytes)


@cache
def _parameters_sent(model: Model, layout: Layout, shared: Sharing, place: Coordinate) -> tuple[dict[str, int], int]:
    """Payload of parameters and gradients over data-parallel ranks, and of gradients that are partial over tp."""
    parameters, rank = _parameters(model, layout, place), place.dp * layout.cp + place.cp
    data = sent_costs.data_payload(parameters, shared, layout.microbatches)
    return data, sent_costs.partial_payload(parameters, shared, rank, layout.sequence_parallel)


def _sends(model: Model, layout: Layout, steps: Steps, place: Coordinate) -> list[Sent]:
    shape, sequences = own_shape(model, layout), microbatch(layout, steps)
    item, m = ITEM[steps.dtype], layout.microbatches
    alike = replace(layout, microbatches=m if layout.zero >= 2 else layout.pp, recompute="none")
    shared, parameters = sharing(layout, steps), _parameters(model, layout, place)
    data, partial = _parameters_sent(model, alike, shared, place)
    if steps.ordered_sums:
        data = sent_costs.ordered_sent(parameters, shared, place.dp)
    holders = placement(layout)
    stages = [stage for stage, rank in enumerate(holders) if rank == place.pp]
    found = []
    for stage in stages:
        layers, ends = costs.layers_of(shape.layers, len(holders), stage), (stage == 0, stage == len(holders) - 1)
        cut = layout.tp, layout.sequence_parallel, layout.recompute, item, rows_of(model, sequences)
        for verb, size in sent_costs.tensor_payload(sequences, shape, layers, *ends, *cut).items():
            found.append(Sent("tp", "activations and their gradients", verb, m * size))
        along_cp = len(layers), layout.cp_mode, layout.cp, layout.tp, layout.recompute, item
        for verb, size in sent_costs.context_payload(sequences, shape_of(model), *along_cp).items():
            found.append(Sent("cp", "keys, values and their gradients", verb, m * size))
        mixtures = sum(shape.is_mixture(layer) for layer in layers)
        where = layout.ep, place.dp % layout.ep, layout.recompute == "full", item
        for verb, size in sent_costs.expert_payload(rows_of(model, sequences), shape, mixtures, *where).items():
            found.append(Sent("ep", "tokens to experts and back", verb, m * size))
    more = "gradients of norms, row biases, positions" if layout.sequence_parallel else "gradients of shared key heads"
    found.append(Sent("tp", more, "all_reduce", partial))
    crossing = sent_costs.pipeline_sent(_boundary(model, layout, steps), holders, m, place.pp)
    found.append(Sent("pp", "activations and their gradients", "send", crossing))
    tied = sent_costs.tied_sent(shape, holders, layout.tp, place.pp, shared.gradient)
    found.append(Sent("pp", "the tied table's gradient", "send", tied))
    for verb, size in data.items():
        found.append(Sent("dp", "parameters" if verb == "all_gather" else "gradients", verb, size))
    for verb, size in sent_costs.optimizer_payload(parameters, shared).items():
        found.append(Sent("dp", "what the optimizer needs of whole tensors", verb, size))
    losses = layout.dp * m if steps.ordered_sums else 1
    found.append(Sent("all", "loss and squared norm", "all_reduce", 8 * (1 + losses) if layout.ranks > 1 else 0))
    return found


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
