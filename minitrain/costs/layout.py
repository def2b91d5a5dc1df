"""What a rank of any layout holds, and what its step takes: closed formulas of the chapters, put together.

`docs/javascripts/costs.js` is this file and what it calls. Unlike the dry run (`minitrain.planning.plan`), states are
divided without rest, the schedule is 1F1B, and messages of embedding, head and norms are left out. V vocabulary, L
layers, h hidden, s positions, E experts; d, p, c, t, e ranks of dp, pp, cp, tp, ep; m micro-batches of b sequences.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

from minitrain.costs import composition_kept, pipeline, time_bar, vocabulary, zero
from minitrain.costs.composition import Shape, layer_counts, layer_parameters
from minitrain.costs.composition_work import core_work, layer_work
from minitrain.costs.fabric import DEFAULT, Fabric, pieces
from minitrain.costs.roofline import Machine
from minitrain.costs.time_bar import ADAM, HALF, LOSS, Reached


class Cut(NamedTuple):
    """How a model and its batch are cut: d, p, c, t, e, the stage of ZeRO, …, m, b.

    Ranks of cp are a ring, and those of ep are among the data-parallel ones. `sequence`: sequence parallelism.
    """

    dp: int = 1
    pp: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    zero: int = 0
    sequence: bool = False
    recompute: str = "none"
    microbatches: int = 1
    sequences: int = 1


class Sizes(NamedTuple):
    """Bytes of a parameter or activation, of a gradient's element, and of optimizer states for each parameter."""

    parameter: int = 2
    gradient: int = 2
    optimizer: int = 12


@cache
def kinds(shape: Shape) -> dict[bool, int]:
    """The first dense layer, and the first with experts, so far as there are such."""
    return {shape.is_mixture(layer): layer for layer in reversed(range(shape.layers))}


@cache
def mixtures(shape: Shape, pp: int, stage: int) -> int:
    """Layers of a pipeline stage that have experts in place of their MLP."""
    counts = layer_counts(shape.layers, pp)
    before = sum(counts[:stage])
    return sum(map(shape.is_mixture, range(before, before + counts[stage])))


@cache
def layer_shares(shape: Shape, mixture: bool, tensor: int, own: int) -> tuple[int, int]:
    """Parameters of a layer on a rank: those that all data-parallel ranks share, and those of its `own` experts."""
    if mixture not in kinds(shape):
        return 0, 0
    # One expert is as large as another.
    found = layer_parameters(shape, kinds(shape)[mixture], tensor, range(min(1, own)))
    of_one = sum(each.elements for each in found if each.expert)
    return sum(each.elements for each in found if not each.expert), own * of_one


def parameters(shape: Shape, cut: Cut, stage: int) -> tuple[int, int]:
    """Parameters on a rank of a pipeline stage: those that all data-parallel ranks share, and those of its experts.

    Layers are divided as `composition.layer_parameters` says. A tied table is on the first and on the last stage.
    """
    layers, routed = layer_counts(shape.layers, cut.pp)[stage], mixtures(shape, cut.pp, stage)
    own, last = -(-shape.experts // cut.ep), stage == cut.pp - 1
    shared, of_experts = 0, 0
    for mixture, count in ((False, layers - routed), (True, routed)):
        one = layer_shares(shape, mixture, cut.tp, own)
        shared, of_experts = shared + count * one[0], of_experts + count * one[1]
    table = vocabulary.rows(shape.vocabulary, cut.tp) * shape.hidden
    shared += (table + shape.learned * shape.positions * shape.hidden) * (stage == 0)
    shared += ((1 if shape.rms else 2) * shape.hidden + table * (stage > 0 or not shape.tied)) * last
    return shared, of_experts


@cache
def layer_kept(batch: int, shape: Shape, tensor: int, sequence: bool, item: int, recompute: str) -> tuple[int, int]:
    """Bytes that a rank keeps of a dense layer, and of one with experts, whose load is even."""
    args, routes = (tensor, sequence, recompute, item), batch * shape.positions * shape.chosen
    routed = composition_kept.mixture_kept(batch, shape, routes, *args) if shape.experts else 0
    return composition_kept.layer_kept(batch, shape, *args), routed


def held(shape: Shape, cut: Cut, stage: int, sizes: Sizes) -> dict[str, float]:
    """Bytes on a rank of a pipeline stage: parameters, gradients, optimizer states, and activations at their peak.

    Source: Rajbhandari et al. 2020, §5; Korthikanti et al. 2022, §4; Narayanan et al. 2021, §2.2.
    """
    shared, experts = parameters(shape, cut, stage)
    states = zero.state_bytes(cut.zero, shared, cut.dp * cut.cp, *sizes)
    of_experts = zero.state_bytes(cut.zero, experts, max(1, cut.dp // cut.ep), *sizes)
    found = {name: size + of_experts[name] for name, size in states.items()}
    own = shape._replace(positions=shape.positions // cut.cp)
    layers, routed = layer_counts(shape.layers, cut.pp)[stage], mixtures(shape, cut.pp, stage)
    args = cut.sequences, own, cut.tp, cut.sequence, sizes.parameter
    (dense, mixture), (whole, whole_mixture) = layer_kept(*args, cut.recompute), layer_kept(*args, "none")
    ends = stage == 0, stage == cut.pp - 1
    numbers, output = composition_kept.ends_kept(cut.sequences, own, *ends, cut.tp, cut.sequence, sizes.parameter)
    one = (layers - routed) * dense + routed * mixture + numbers + output
    again = max((whole - dense) * (layers > routed), (whole_mixture - mixture) * (routed > 0))
    under_way = pipeline.one_f_one_b_in_flight(cut.pp, cut.microbatches, stage)
    return found | {"activations": under_way * one + max(0, again - output)}


def layer_products(batch: int, shape: Shape, mixture: bool, tensor: int, context: int) -> int:
    """Operations of a layer's products in forward, on one rank; of a mixture with an even load."""
    rows = batch * shape.positions // context * shape.chosen
    layer = kinds(shape).get(mixture)
    return 0 if layer is None else layer_work(batch, shape, layer, rows, tensor, "none", context).weight


def layer_core(batch: int, shape: Shape, tensor: int, context: int) -> int:
    """Operations of a layer's core in forward, on one rank, with nothing masked."""
    return core_work(batch, shape, tensor, Fraction(1, context))


class Seconds(NamedTuple):
    """Of each stage in a step, for all micro-batches: computing without and with recomputation; of them the cores."""

    computed: list[float]
    busy: list[float]
    cores: list[float]


def seconds(shape: Shape, cut: Cut, sizes: Sizes, machine: Machine, reached: Reached = HALF) -> Seconds:
    """What each pipeline stage computes, as `minitrain.planning.full.time_model.stage_seconds` says it.

    Products and cores are operations over a part of the peak. What norms, activations and loss move is bytes.
    """
    batch, item, speed = cut.microbatches * cut.sequences, sizes.parameter, reached.products * machine.flops
    tokens = batch * (shape.positions // cut.cp)
    core = layer_core(batch, shape, cut.tp, cut.cp)
    # A fused kernel leaves out the half that is masked, and computes scores again: 5 products in backward for 2.
    forward = core / speed if reached.core is None else core / 2 / (reached.core * machine.flops)
    backward = (2 if reached.core is None else 2.5) * forward
    # Outside attention and MLP, tensor-parallel ranks hold activations whole, unless those are cut, too.
    sharers = cut.tp if cut.sequence else 2 * cut.tp / (1 + cut.tp)
    moved = reached.moved * tokens * shape.hidden * item / 2 / sharers / machine.memory
    dense, mixture = (layer_products(batch, shape, kind, cut.tp, cut.cp) / speed for kind in (False, True))
    logits = tokens * vocabulary.rows(shape.vocabulary, cut.tp)
    head = 6 * logits * shape.hidden / speed + LOSS * logits / machine.memory * (reached.moved > 0)
    found = Seconds([], [], [])
    for stage, layers in enumerate(layer_counts(shape.layers, cut.pp)):
        routed = mixtures(shape, cut.pp, stage)
        of_products = (layers - routed) * dense + routed * mixture
        again = {"none": 0.0, "selective": layers * forward, "full": of_products + layers * (forward + moved / 3)}
        computed = 3 * of_products + layers * (forward + backward + moved) + head * (stage == cut.pp - 1)
        found.computed.append(computed)
        found.busy.append(computed + again[cut.recompute])
        found.cores.append(layers * (forward + backward + forward * (cut.recompute != "none")))
    return found


def bar(
    shape: Shape, cut: Cut, sizes: Sizes, machine: Machine, fabric: Fabric = DEFAULT, reached: Reached = HALF
) -> time_bar.Bar:
    """The seconds of a step on the pipeline rank that computes most.

    Overlap is that of `minitrain.planning.full.time_model`; the load of experts is even, and the ring is in balance.
    Ranks fill nodes in order, tp first, then cp, dp, pp.
    """
    m, item = cut.microbatches, sizes.parameter
    computed, busy, cores = seconds(shape, cut, sizes, machine, reached)
    busiest = busy.index(max(busy))
    compute, again = computed[busiest], busy[busiest] - computed[busiest]
    idle = (sum(busy) - busy[busiest]) / m  # until the first micro-batch has come, and after the last one has left
    forward, backward = compute / 3, 2 / 3 * compute + again

    layers, forwards = layer_counts(shape.layers, cut.pp)[busiest], 2 if cut.recompute == "full" else 1
    tokens = m * cut.sequences * (shape.positions // cut.cp)
    wide = tokens * shape.hidden * item  # bytes of the residual stream, of all micro-batches
    sharers = cut.dp * cut.cp
    shared, own = parameters(shape, cut, busiest)
    replicas = max(1, cut.dp // cut.ep)
    line = (shared * (sharers - 1) / sharers + own * (replicas - 1) / replicas) / fabric.ring(machine, sharers, cut.tp)
    parts = layers + 1 if cut.zero >= 2 else pieces(shared + own, sharers, layers)
    around = parts * fabric.wait(sharers, cut.tp)
    gather, scatter = line * item + around, line * sizes.gradient + around
    if cut.zero == 3:
        data = [(m * gather, forward), (m * (gather + scatter), backward)]
    else:
        sent = {0: 2, 1: 1, 2: m}[cut.zero] * scatter
        data = [(sent, backward / (1 if cut.zero == 2 else m)), (gather * (cut.zero > 0), forward / m)]
    sums = layers * (2 * forwards + 2)  # all-reduces of a micro-batch, each of two rings
    tensor = sums * wide * 2 * (cut.tp - 1) / cut.tp / fabric.ring(machine, cut.tp) + 2 * sums * m * fabric.wait(cut.tp)
    times = 2 if cut.recompute == "none" else 3
    keys = layers * (cut.cp - 1) * 2 * tokens * shape.kv_own(cut.tp) * (times * item + max(4, item))
    ring = keys / fabric.message(machine, cut.cp, cut.tp)
    near = cut.ep, cut.tp * cut.cp
    rows = mixtures(shape, cut.pp, busiest) * (2 * forwards + 2) * wide * shape.chosen
    waited = tensor + rows * fabric.leaving(*near) / fabric.message(machine, *near)
    last = cut.pp - 1
    boundary = ((busiest < last) + (busiest > 0)) * wide / (cut.tp if cut.sequence else 1)
    if shape.tied and last > 0 and busiest in (0, last):  # the two exchange the gradient of their common table
        boundary += vocabulary.rows(shape.vocabulary, cut.tp) * shape.hidden * sizes.gradient
    crossing = (boundary / fabric.message(machine, cut.pp, cut.tp * sharers), (compute + again) * (m > 1))
    hidden, exposed = time_bar.overlap(*data, crossing, (ring, cores[busiest]), (waited, 0.0))
    # The optimizer moves its states, and what hides slows down what hides it.
    stepped = (shared / sharers + own / replicas if cut.zero else shared + own) * (reached.moved > 0)
    compute += ADAM * stepped / machine.memory
    return time_bar.Bar(compute, hidden, exposed + reached.contended * hidden, again, idle)
