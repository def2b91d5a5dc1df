"""The cost of ZeRO: bytes of model states on each rank, and bytes sent in a step, stage by stage.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", §5 and §7, and exact
formulas for lines (flat buffers) of real sizes with padding. Ψ parameters, n ranks (the paper's N_d), K bytes of
optimizer states for each parameter, A micro-batches in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minitrain.costs.communication import NOTHING, Traffic, ring_all_gather, ring_reduce_scatter

STAGES = (0, 1, 2, 3)


def _check(stage: int) -> None:
    if stage not in STAGES:
        raise ValueError(f"stage={stage} is unknown; use one of {STAGES}")


def state_bytes(
    stage: int,
    parameters: float,
    ranks: int,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> dict[str, float]:
    """Bytes on each rank, by category: stage 1 divides optimizer states by n, 2 gradients too, 3 all (§5)."""
    _check(stage)
    bytes_each = {"optimizer states": optimizer_bytes, "gradients": gradient_bytes, "parameters": parameter_bytes}
    held = {
        name: size * parameters / (ranks if stage >= first else 1)
        for first, (name, size) in enumerate(bytes_each.items(), 1)
    }
    return {name: held[name] for name in ("parameters", "gradients", "optimizer states")}


def volume(stage: int, parameters: float, micro_batches: int = 1) -> float:
    """2Ψ elements sent by each rank in a step in stages 0 and 1, (A + 1)Ψ in stage 2, 3AΨ in stage 3, for many ranks.

    Reduce-scatter and all-gather are Ψ each; stage 2 reduce-scatters each micro-batch's gradients (§7.2, for A = 1).
    """
    _check(stage)
    return {0: 2, 1: 2, 2: micro_batches + 1, 3: 3 * micro_batches}[stage] * parameters


class Line(NamedTuple):
    """Parameters that lie side by side, cut into n equal shards; `elements` are those without padding."""

    elements: int
    item_size: int
    tensors: int = 1
    trainable: bool = True


def padding(elements: int, ranks: int) -> int:
    """Elements that are added so that n divides the line: fewer than n."""
    return -elements % ranks


def shard_elements(elements: int, ranks: int) -> int:
    """Elements of a shard, padding included: ⌈elements/n⌉."""
    return -(-elements // ranks)


def held(
    stage: int,
    lines: Sequence[Line],
    ranks: int,
    state_size: int = 8,
    counter: int = 4,
    gradient_item: int | None = None,
) -> dict[str, int]:
    """Bytes that each rank holds between two steps' backwards, exactly: `state_bytes` with padding and counters.

    Σ over lines of nsw or sw for parameters and for gradients, of Ks + c for optimizer states, where a line of E
    elements of w bytes has shards of s = ⌈E/n⌉. Stage 0 has no lines, thus no padding, and a counter for each tensor.

    Args:
        state_size: K: AdamW 8, SGD with momentum 4; 4 more where a float32 copy of 16-bit parameters is kept.
        counter: c, bytes of the step counter: 4 in torch's AdamW, 0 in its SGD.
        gradient_item: Bytes of a gradient's element; None: as many as of its parameter's.
    """
    _check(stage)
    total = {"parameters": 0, "gradients": 0, "optimizer states": 0}
    for elements, item_size, tensors, trainable in lines:
        shard = shard_elements(elements, ranks)
        whole = elements if stage == 0 else ranks * shard
        total["parameters"] += item_size * (shard if stage == 3 else whole)
        if trainable:
            total["gradients"] += (gradient_item or item_size) * (shard if stage >= 2 else whole)
            total["optimizer states"] += state_size * (whole if stage == 0 else shard)
            total["optimizer states"] += counter * (tensors if stage == 0 else 1)
    return total


def _around(
    lines: Sequence[Line], ranks: int, rank: int, ring: Callable[..., Traffic], frozen: bool = False
) -> Traffic:
    """What a rank sends when all lines (the frozen ones only if asked) go once around a ring: (n−1)/n of each."""
    sent = NOTHING
    for line in lines:
        if line.trainable or frozen:
            sent += ring(line.elements + padding(line.elements, ranks), line.item_size, ranks, rank)
    return sent


def step_traffic(stage: int, lines: Sequence[Line], ranks: int, rank: int, micro_batches: int = 1) -> Traffic:
    """What a rank sends in a step of stage 1, 2 or 3 through rings, exactly: (n−1)/n of `volume` and of the padding.

    Without clipping, which all-reduces one number of 8 bytes (§7.2; Patarasuk & Yuan 2009 for the ring).
    """
    if stage not in STAGES[1:]:
        raise ValueError(f"stage={stage} has no lines; use 1, 2 or 3")
    reduced = _around(lines, ranks, rank, ring_reduce_scatter)
    gathered = _around(lines, ranks, rank, ring_all_gather, frozen=stage == 3)
    reductions = 1 if stage == 1 else micro_batches
    gatherings = 2 * micro_batches if stage == 3 else 1
    return reductions * reduced + gatherings * gathered


def gradient_peak(lines: Sequence[Line], largest: int, ranks: int, drain: bool = True) -> int:
    """Bytes of full gradients that stage 2 holds at once, without its shards, if lines fill one after the other.

    With draining, where a reduce-scatter is done before the next is started: two neighbors (one filling, one being
    sent), and the gradient that is being copied, at most the `largest`. Without: all. `lines` are in the order in which
    they fill (§5.2 for the idea; Zhao et al. 2023, §3.4, for the limit).
    """
    sizes = [(line.elements + padding(line.elements, ranks)) * line.item_size for line in lines if line.trainable]
    if not drain:
        return sum(sizes) + largest
    return max((this + following for this, following in zip(sizes, [*sizes[1:], 0], strict=False)), default=0) + largest
