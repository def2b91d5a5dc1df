"""What a rank of any layout holds, and what its step takes: closed formulas of the chapters, put together.

`docs/javascripts/costs.js` is this file and what it calls. Unlike the dry run (`minitrain.planning.plan`), states are
divided without rest, the schedule is 1F1B, and messages of embedding, head and norms are left out. V vocabulary, L
layers, h hidden, s positions, E experts; d, p, c, t, e ranks of dp, pp, cp, tp, ep; m micro-batches of b sequences.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs import composition_kept, mixture_of_experts, pipeline, recomputation, time_bar, zero
from minitrain.costs.composition import Shape, layer_counts
from minitrain.costs.fabric import DEFAULT, Fabric, pieces
from minitrain.costs.roofline import Machine


class Cut(NamedTuple):
    """How a model and its batch are cut.

    Attributes:
        dp: Data-parallel ranks, d.
        pp: Pipeline stages, p.
        cp: Context-parallel ranks, c, as a ring.
        tp: Tensor-parallel ranks, t.
        ep: Expert-parallel ranks, e, among the data-parallel ones.
        sequence: Whether there is sequence parallelism.
        recompute: "none", "selective" or "full".
        microbatches: Of each data-parallel rank in a step, m.
        sequences: Of a micro-batch, b.
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


def mixtures(shape: Shape, pp: int, stage: int) -> int:
    """Layers of a pipeline stage that have experts in place of their MLP."""
    counts = layer_counts(shape.layers, pp)
    before = sum(counts[:stage])
    return sum(map(shape.is_mixture, range(before, before + counts[stage])))


def parameters(shape: Shape, cut: Cut, stage: int) -> tuple[int, int]:
    """Parameters on a rank of a pipeline stage: those that all data-parallel ranks share, and those of its experts.

    A layer is divided as `memory.gpt_shard_parameters` says. A tied table is on the first and on the last stage.
    """
    h, t = shape.hidden, cut.tp
    layers, routed = layer_counts(shape.layers, cut.pp)[stage], mixtures(shape, cut.pp, stage)
    table, last = -(-shape.vocabulary // t) * h, stage == cut.pp - 1
    shared = layers * ((12 * h * h + 7 * h) // t + 6 * h)
    shared += (table + shape.learned * shape.positions * h) * (stage == 0)
    shared += (2 * h + table * (stage > 0 or not shape.tied)) * last
    if not routed:
        return shared, 0
    mlp = (8 * h * h + 4 * h) // t + h
    own = -(-shape.experts // cut.ep)
    shared += routed * (shape.gates * h * shape.experts - mlp)
    return shared, routed * own * ((mixture_of_experts.expert_parameters(h, 4 * h) - h) // t + h)


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
    mode = "zigzag" if cut.cp > 1 else None

    def kept(recompute: str) -> tuple[int, int]:
        """Of a dense layer, and of one with experts."""
        args = cut.sequences, own, cut.tp, cut.sequence, recompute, sizes.parameter
        routes = cut.sequences * own.positions
        mixture = composition_kept.mixture_kept(*args[:2], routes, *args[2:]) if routed else 0
        return composition_kept.layer_kept(*args, mode=mode), mixture

    (dense, mixture), (whole, whole_mixture) = kept(cut.recompute), kept("none")
    ends = stage == 0, stage == cut.pp - 1
    numbers, output = composition_kept.ends_kept(cut.sequences, own, *ends, cut.tp, cut.sequence, sizes.parameter)
    one = (layers - routed) * dense + routed * mixture + numbers + output
    again = max((whole - dense) * (layers > routed), (whole_mixture - mixture) * (routed > 0))
    under_way = pipeline.one_f_one_b_in_flight(cut.pp, cut.microbatches, stage)
    return found | {"activations": under_way * one + max(0, again - output)}


def bar(
    shape: Shape, cut: Cut, sizes: Sizes, machine: Machine, fabric: Fabric = DEFAULT, reached: float = 0.5
) -> time_bar.Bar:
    """The seconds of a step on the pipeline rank that computes most.

    Overlap is that of `minitrain.planning.full.time_model`; each token visits one expert, and the ring is in balance.

    Args:
        fabric: How GPUs are connected; ranks fill nodes in order, tp first, then cp, dp, pp.
        reached: The part of the peak that products reach.
    """
    m, b, s, h, item = cut.microbatches, cut.sequences, shape.positions, shape.hidden, sizes.parameter
    work, speed = (b * m, s, h), cut.cp * cut.tp * reached * machine.flops
    repeated = {"none": 0, "selective": recomputation.core_flops(*work), "full": recomputation.layer_flops(*work)}
    counts = layer_counts(shape.layers, cut.pp)
    computed = [3 * count * recomputation.layer_flops(*work) / speed for count in counts]
    computed[-1] += 6 * b * m * s * h * shape.vocabulary / speed  # the head
    busy = [seconds + count * repeated[cut.recompute] / speed for seconds, count in zip(computed, counts, strict=True)]
    busiest = busy.index(max(busy))
    compute, again = computed[busiest], busy[busiest] - computed[busiest]
    idle = (sum(busy) - busy[busiest]) / m  # until the first micro-batch has come, and after the last one has left
    forward, backward = compute / 3, 2 / 3 * compute + again

    layers, forwards = counts[busiest], 2 if cut.recompute == "full" else 1
    wide = m * b * (s // cut.cp) * h * item  # bytes of the residual stream, of all micro-batches
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
    keys = layers * (cut.cp - 1) * 2 * (wide / item / cut.tp) * (times * item + max(4, item))
    ring = keys / fabric.message(machine, cut.cp, cut.tp)
    core = layers * recomputation.core_flops(*work) * (times + 1) / speed
    near = cut.ep, cut.tp * cut.cp
    experts = mixtures(shape, cut.pp, busiest) * (2 * forwards + 2) * wide * fabric.leaving(*near)
    waited = tensor + experts / fabric.message(machine, *near)
    last = cut.pp - 1
    boundary = ((busiest < last) + (busiest > 0)) * wide / (cut.tp if cut.sequence else 1)
    if shape.tied and last > 0 and busiest in (0, last):  # the two exchange the gradient of their common table
        boundary += -(-shape.vocabulary // cut.tp) * h * sizes.gradient
    crossing = (boundary / fabric.message(machine, cut.pp, cut.tp * sharers), (compute + again) * (m > 1))
    return time_bar.Bar(compute, *time_bar.overlap(*data, crossing, (ring, core), (waited, 0.0)), again, idle)
