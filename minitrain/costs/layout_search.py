"""Which layout trains a model fastest, by the closed formulas of `minitrain.costs.layout`: the calculator's ranking.

The candidates are those of `minitrain.planning.search` so far as their schedule is 1F1B and a long sequence's ring is
zigzag. `docs/javascripts/layouts.js` is this file. Letters: `minitrain.costs.layout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from minitrain.costs.composition import Shape
from minitrain.costs.fabric import DEFAULT, Fabric
from minitrain.costs.layout import Cut, Sizes, bar, held
from minitrain.costs.memory import ROOM
from minitrain.costs.roofline import Machine
from minitrain.costs.time_bar import HALF, Reached

LONG = 8192  # tokens of a sequence that a context-parallel rank has at least
SEQUENCES = (1, 2, 4, 8, 16)  # of a micro-batch


class Found(NamedTuple):
    """A layout that fits, and the seconds of its step."""

    seconds: float
    cut: Cut


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def divides(shape: Shape, tp: int) -> bool:
    """Whether tp ranks can divide a layer; latent attention is planned without."""
    keys = shape.kv_heads or shape.heads
    widths = shape.heads, shape.mlp_width, shape.expert_width if shape.experts else tp
    return all(width % tp == 0 for width in widths) and not (keys % tp and tp % keys) and (tp == 1 or not shape.latent)


def axes(shape: Shape, gpus: int, batch: int, per_node: int = 8) -> Iterator[Cut]:
    """The sizes of dp, pp, cp, tp and ep that divide the GPUs, the batch and the model; tp stays within a node."""
    most = 1 if shape.experts or shape.latent else shape.positions // LONG
    contexts = [cp for cp in divisors(gpus) if cp == 1 or cp <= most and shape.positions % (2 * cp) == 0]
    ways = [tp for tp in divisors(per_node) if divides(shape, tp)]
    for tp, pp, ep, cp in product(ways, divisors(gpus), divisors(shape.experts or 1), contexts):
        dp, rest = divmod(gpus, tp * pp * cp)
        if not (rest or pp > shape.layers or batch % dp or dp % ep):
            yield Cut(dp, pp, cp, tp, ep, sequence=tp > 1 and shape.positions % (cp * tp) == 0)


def fits(shape: Shape, cut: Cut, sizes: Sizes, machine: Machine) -> bool:
    """Whether each stage leaves a tenth of its GPUs' memory free."""
    usable = (1 - ROOM) * machine.size
    return all(sum(held(shape, cut, stage, sizes).values()) <= usable for stage in range(cut.pp))


def variants(shape: Shape, cut: Cut, batch: int, sizes: Sizes, machine: Machine) -> Iterator[Cut]:
    """ZeRO, micro-batch and recomputation of a layout's axes, so far as they fit; recomputed only where it must be."""
    most = 3 if cut.pp == 1 and not shape.experts else 1  # beyond, gradients travel with every micro-batch
    for zero in range(1 + most if cut.dp * cut.cp > 1 else 1):
        for sequences in SEQUENCES:
            microbatches, rest = divmod(batch // cut.dp, sequences)
            if rest:
                break  # nor does any larger one divide
            way = cut._replace(zero=zero, microbatches=microbatches, sequences=sequences)
            ways = (way, way._replace(recompute="full"))
            fitting = next((each for each in ways if fits(shape, each, sizes, machine)), None)
            if fitting is None:
                break  # a larger micro-batch holds more
            yield fitting


def fastest(
    shape: Shape,
    gpus: int,
    batch: int,
    machine: Machine,
    sizes: Sizes = Sizes(),  # noqa: B008
    fabric: Fabric = DEFAULT,
    reached: Reached = HALF,
    keep: int = 10,
) -> list[Found]:
    """The fastest layouts that fit, of each choice of axes only its fastest variant."""
    found = []
    for cut in axes(shape, gpus, batch, fabric.per_node):
        each = [
            Found(bar(shape, way, sizes, machine, fabric, reached).step, way)
            for way in variants(shape, cut, batch, sizes, machine)
        ]
        if each:
            found.append(min(each))
    return sorted(found)[:keep]
