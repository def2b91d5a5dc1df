"""What a rank sends in a step, axis by axis: the payload of collectives, and the bytes of messages.

An axis of one rank sends nothing; tokens are spread evenly over experts. Notation as in `minitrain.costs.composition`;
`batch` is b, `item` w.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minitrain.costs import mixture_of_experts, optimizers, sequence_parallel, tensor_parallel, vocabulary, zero
from minitrain.costs.composition import Parameter, Shape, experts_of
from minitrain.costs.composition_states import Sharing

Payload = dict[str, int]
"""Bytes by the verb that carries them: "all_reduce", "all_gather", … as the ledger calls it."""


def tensor_payload(
    batch: int,
    shape: Shape,
    layers: Iterable[int],
    first: bool,
    last: bool,
    tensor: int,
    sequence: bool = False,
    recompute: str = "none",
    item: int = 4,
    rows: int = 0,
) -> Payload:
    """Payload of one micro-batch in a stage, over the tensor-parallel ranks: S = bsh·w for each but the loss's.

    Forward g after attention and MLP, backward f; embedding forward, head backward, loss; with sequence parallelism
    all-gathers and reduce-scatters. Full recomputation repeats each layer's forward. A mixture keeps what it has
    gathered, and backward sends the gradients of gates, a number for each of its `rows`, in float32 at least.

    Source: Shoeybi et al. 2019, §3; Korthikanti et al. 2022, §4.2.2; Narayanan et al. 2021, §3.2.
    """
    if tensor == 1:
        return {}
    size, tokens = tensor_parallel.payload(batch, shape.positions, shape.hidden, item), batch * shape.positions
    forwards = 2 if recompute == "full" else 1
    loss = vocabulary.loss_payload(tokens, tensor, max(4, item)) if last else 0
    layers = list(layers)
    count, mixtures = len(layers), sum(map(shape.is_mixture, layers))
    gates = mixtures * rows * max(4, item)
    if not sequence:
        one = tensor_parallel.all_reduces()
        inside = count * (forwards * one.forward + one.backward)
        return {"all_reduce": (inside + first + last) * size + gates, "all_gather": loss}
    ways = sequence_parallel.layer_calls()
    gathers = count * (forwards * ways.forward.all_gathers + ways.backward.all_gathers) + first + 2 * last - mixtures
    scatters = count * (forwards * ways.forward.reduce_scatters + ways.backward.reduce_scatters) + first + last
    sent = {"all_gather": gathers * size + loss, "reduce_scatter": scatters * size}
    return sent | ({"all_reduce": gates} if mixtures else {})


def context_payload(
    batch: int,
    shape: Shape,
    layers: int,
    mode: str,
    context: int,
    tensor: int = 1,
    recompute: str = "none",
    item: int = 4,
) -> Payload:
    """Payload of one micro-batch in a stage, over n context-parallel ranks: their keys and values, b(s/n)(h/t)w each.

    Ring and zigzag send both n − 1 times, forward and again backward, and their gradients as often, in float32 at
    least. Gather gathers both each time, and reduce-scatters gradients. Ulysses exchanges queries, keys, values and
    outputs, then their gradients. Recomputation repeats what forward sends. Keys and values that heads share are fewer;
    under Ulysses each goes to every rank with a query that uses it, and its gradients then travel in float32 at least.
    `mode` is one of these, in lower case.

    Source: Liu et al. 2023, "Ring attention", §3; Jacobs et al. 2023, "DeepSpeed Ulysses", §3.2; Grattafiori et al.
    2024, "The Llama 3 Herd of Models", §3.3.2, for gather.
    """
    if context == 1:
        return {}
    tokens = batch * (shape.positions // context)
    one = tokens * shape.kv_own(tensor)  # elements of a rank's keys, as of its values
    times, wide = 2 if recompute == "none" else 3, max(4, item)
    if mode == "ulysses":
        copies, heads = sum(shape.kv_heads_used(tensor, context)), shape.kv_own(tensor) // shape.head
        sent = times * item * tokens * (shape.width // tensor)
        sent += ((times - 1) * item + (wide if copies > heads else item)) * tokens * copies * shape.head
        return {"all_to_all": layers * 2 * sent}
    if mode == "gather":
        both = layers * context * 2 * one
        return {"all_gather": times * both * item, "reduce_scatter": both * wide}
    return {"send": layers * (context - 1) * 2 * one * (times * item + wide)}


def partial_payload(parameters: Sequence[Parameter], sharing: Sharing, rank: int, sequence: bool = True) -> int:
    """Bytes of gradients that are partial, once per step: of key heads that ranks share, and of the norms of heads.

    Under sequence parallelism also of other norms, row biases, and positions. They are added over tensor-parallel ranks
    after the data-parallel reduction; under ZeRO, this rank's shard of them. Of each piece there is a slot.
    """
    total = 0
    for line, elements, _ in sharing.buffers(parameters):
        shard = zero.shard_elements(elements, sharing.data)
        begin, end = (rank * shard, (rank + 1) * shard) if sharing.stage else (0, sharing.data * shard)
        offset = 0
        for each in line:
            # A router sees all tokens.
            cut = sequence and each.whole and not each.expert and ".mlp.router." not in each.name
            if slots := each.partial or int(cut):
                total += slots * max(0, min(end, offset + each.elements) - max(begin, offset))
            offset += each.elements
    return total * sharing.gradient


def pipeline_sent(boundary: int, placement: Sequence[int], microbatches: int, rank: int) -> int:
    """m boundaries forward and m back between neighboring stages on different ranks (Narayanan et al. 2021, §3.2).

    `boundary`: bytes of a micro-batch's activations between two stages; `placement[s]`: the rank that holds stage s.
    """
    crossing = [pair for pair in zip(placement, placement[1:], strict=False) if pair[0] != pair[1]]
    return microbatches * boundary * sum(rank in pair for pair in crossing)


def tied_sent(shape: Shape, placement: Sequence[int], tensor: int, rank: int, item: int = 4) -> int:
    """V'/t · h · w: bytes of the tied table's gradient, once per step between first and last stage on different ranks.

    Source: Narayanan et al. 2021, §2.2.
    """
    ends = {placement[0], placement[-1]}
    sends = shape.tied and len(ends) == 2 and rank in ends
    return vocabulary.table_bytes(shape.vocabulary, shape.hidden, tensor, item) if sends else 0


def data_payload(parameters: Sequence[Parameter], sharing: Sharing, microbatches: int) -> Payload:
    """Payload of gradients and parameters over data-parallel ranks, and of experts' over those with the same ones.

    Stage 0 all-reduces gradients once. Stage 1 reduce-scatters them and gathers parameters. Stage 2 reduce-scatters
    each micro-batch's, stage 3 also gathers parameters twice in each (Rajbhandari et al. 2020, §7.2).
    """
    total, stage = {"all_reduce": 0, "reduce_scatter": 0, "all_gather": 0}, sharing.stage
    reduced, gathered = {0: (1, 0), 1: (1, 1), 2: (microbatches, 1), 3: (microbatches, 2 * microbatches)}[stage]
    for _, elements, ranks in sharing.buffers(parameters):
        if ranks == 1:
            continue
        padded = elements + (zero.padding(elements, ranks) if stage else 0)
        total["reduce_scatter" if stage else "all_reduce"] += reduced * sharing.gradient * padded
        total["all_gather"] += gathered * sharing.item * padded
    return {verb: size for verb, size in total.items() if size}


def ordered_sent(parameters: Sequence[Parameter], sharing: Sharing, rank: int) -> Payload:
    """Bytes of ordered sums: the sum so far to the next rank, and back what the ranks before need of the whole sum.

    That is all of it in stage 0 of ZeRO, and their shards in stage 1, rS/n of rank r; then parameters are gathered.
    """
    total, stage, data = {"send": 0, "all_gather": 0}, sharing.stage, sharing.data
    for _, elements, _ in sharing.buffers(parameters) if data > 1 else ():
        padded = elements + (zero.padding(elements, data) if stage else 0)
        back = rank * padded // data if stage else padded * (rank > 0)
        total["send"] += sharing.gradient * (padded * (rank < data - 1) + back)
        total["all_gather"] += stage * sharing.item * padded
    return {verb: size for verb, size in total.items() if size}


def optimizer_payload(parameters: Sequence[Parameter], sharing: Sharing) -> Payload:
    """Payload of what an optimizer needs of whole tensors over data-parallel ranks (`minitrain.costs.optimizers`)."""
    optimizer, item = sharing.optimizer, sharing.item
    if sharing.stage == 0 or sharing.data == 1:
        return {}
    one = max(4, item)  # what the optimizer steps is in float32 at least
    shapes = [each.shape or (each.elements,) for each in parameters]
    if optimizer in ("lamb", "lars"):
        return {"all_reduce": optimizers.norms_payload(shapes, one)}
    if optimizer == "adafactor":
        return {"all_reduce": optimizers.adafactor_payload(shapes, one)}
    if optimizer == "muon":
        sizes = [elements for line, elements, _ in sharing.buffers(parameters) if line[0].hidden]
        return {"all_gather": optimizers.muon_payload(sizes, sharing.data, 8 if item == 8 else 2)}
    return {}


def routes(tokens: int, group: int, experts: int, choices: int, factor: float | None) -> int:
    """min(kT, T/group · E · C): rows that a router makes of T tokens with an even load; kT without a capacity factor.

    `group` is the tokens of a routing group, `choices` k, C its `minitrain.costs.mixture_of_experts.capacity`.
    """
    if factor is None:
        return choices * tokens
    places = mixture_of_experts.capacity(group, experts, factor, choices)
    return min(choices * tokens, tokens // group * experts * places)


def expert_payload(
    rows: int, shape: Shape, mixtures: int, ranks: int, rank: int, again: bool = False, item: int = 4
) -> Payload:
    """Payload of one micro-batch's all-to-alls with an even load; the larger of what a rank puts in and gets out.

    Each mixture: numbers of rows (8 bytes for each expert), rows there and back; backward the two large ones again.
    Full recomputation (`again`) repeats those of forward (Lepikhin et al. 2020, §3.3.1). `rows` are those that a rank's
    router makes, `mixtures` the layers with experts in its stages.
    """
    if ranks == 1 or not mixtures:
        return {}
    own = len(experts_of(shape.experts, ranks, rank))
    received = -(-ranks * rows * own // shape.experts)
    numbers = 8 * max(shape.experts, ranks * own)
    large = max(rows, received) * shape.hidden * item
    forwards = 2 if again else 1
    return {"all_to_all": mixtures * (forwards * (numbers + 2 * large) + 2 * large)}
