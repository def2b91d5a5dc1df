"""The operations of a step, stage by stage and in all, and the days of a training.

A product of an m × n matrix with one of n × p counts as 2mnp operations; all else is small and left out. Notation as in
`minitrain.costs.composition`; `rows` are those that routers make in each mixture.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import NamedTuple

from minitrain.costs import recomputation, vocabulary
from minitrain.costs.composition import Shape, layer_parameters, layers_of


class Work(NamedTuple):
    """Floating-point operations of a stage for one micro-batch, on one tensor-parallel rank.

    Attributes:
        backward: I, backward for the input, with what is computed again.
        weight: W, backward for the weights.
    """

    forward: int
    backward: int
    weight: int

    def __add__(self, other: tuple[int, int, int]) -> Work:  # type: ignore[override]
        return Work(*(mine + its for mine, its in zip(self, other, strict=True)))


def core_share(mode: str, context: int) -> Fraction:
    """The part of attention's core that the busiest of n context-parallel ranks computes: 1/n, or (2n − 1)/n².

    Under a causal mask, tokens a to b of s have (b² − a²)/s² of the area. With one chunk for each rank (ring, gather),
    the last has (2n − 1)/n²; zigzag (Grattafiori et al. 2024, §3.3.2) and ulysses share evenly.
    """
    return Fraction(2 * context - 1, context**2) if mode in ("ring", "gather") else Fraction(1, context)


def core_work(batch: int, shape: Shape, tensor: int = 1, share: Fraction = Fraction(1)) -> int:
    """4bs²ad/t of a layer's core in forward, times a context-parallel rank's share (Narayanan et al. 2021, appendix).

    Queries with keys, and weights with values: where these have another width, 2bs² for each of both.
    """
    both = recomputation.core_flops(batch, shape.positions, 1) * (shape.width + shape.mixed_width) // 2
    return int(both * share) // tensor


@cache
def matrices(shape: Shape, layer: int, tensor: int) -> tuple[int, int]:
    """Elements of a rank's matrices of a layer: of those that see all tokens, and of one expert."""
    found = [each for each in layer_parameters(shape, layer, tensor, range(1)) if len(each.shape) == 2]
    of_one = sum(each.elements for each in found if each.expert)
    return sum(each.elements for each in found) - of_one, of_one


def layer_work(
    batch: int,
    shape: Shape,
    layer: int,
    rows: int = 0,
    tensor: int = 1,
    recompute: str = "none",
    context: int = 1,
    share: Fraction = Fraction(1),
) -> Work:
    """F = (24bsh² + 4bs²h)/t of a dense layer; I as much and the core once more; W without the core.

    That is 2 for each token and element of a matrix: of an expert's for each of its rows, and of a router's on every
    tensor-parallel rank. Context-parallel ranks divide the tokens, and of the core each has a share (Narayanan et al.
    2021, appendix). Key heads that several ranks hold are computed on each.
    """
    core, (shared, expert) = core_work(batch, shape, tensor, share), matrices(shape, layer, tensor)
    products = 2 * (batch * shape.positions // context * shared + rows * expert)
    again = {"none": 0, "selective": core, "full": products + core}[recompute]
    return Work(products + core, products + 2 * core + again, products)


def head_work(batch: int, shape: Shape, tensor: int = 1, context: int = 1) -> Work:
    """2bshV, over t with the vocabulary padded, for each of the three; context-parallel ranks divide the tokens."""
    tokens = batch * shape.positions // context
    return Work(*[2 * tokens * shape.hidden * vocabulary.rows(shape.vocabulary, tensor)] * 3)


def stage_work(
    batch: int,
    shape: Shape,
    stages: int,
    stage: int,
    rows: int = 0,
    tensor: int = 1,
    recompute: str = "none",
    context: int = 1,
    share: Fraction = Fraction(1),
) -> Work:
    """A stage's layers, and on the last one the head. Looking up embeddings counts nothing."""
    total = Work(0, 0, 0)
    for layer in layers_of(shape.layers, stages, stage):
        total += layer_work(batch, shape, layer, rows, tensor, recompute, context, share)
    return total + head_work(batch, shape, tensor, context) if stage == stages - 1 else total


def step_flops(batch: int, shape: Shape, rows: int = 0, recompute: str = "none") -> int:
    """72bsLh²(1 + s/6h + V/12hL): operations of a step of b sequences, all ranks together and without padding.

    With full recomputation they are 96bsLh²(1 + s/6h + V/16hL) (Korthikanti et al. 2022, appendix A, equation 7;
    Narayanan et al. 2021, §5.1, equation 3).
    """
    return sum(stage_work(batch, shape, 1, 0, rows, 1, recompute))


def step_seconds(flops: float, ranks: int, per_second: float) -> float:
    """flops / (ranks · per_second): seconds of a step, where `per_second` is what a rank really does.

    It is MFU times the peak for the model's `flops`, and HFU times the peak with recomputed ones (Chowdhery et al.
    2022, "PaLM", appendix B; Korthikanti et al. 2022, table 5).
    """
    return flops / (ranks * per_second)


def days(tokens: float, step_tokens: int, flops: float, ranks: int, per_second: float) -> float:
    """(tokens/step_tokens) · flops / (ranks · per_second), in days; `flops` of a step (Narayanan et al. 2021, §5.1)."""
    return tokens / step_tokens * step_seconds(flops, ranks, per_second) / 86400


def days_estimate(tokens: float, parameters: float, ranks: int, per_second: float) -> float:
    """8TP/(nX) seconds, in days: two operations per parameter and token forward, four backward, two recomputed in full.

    `days` also has s/6h + V/16hL; for GPT-3 it is 2.7 % more (Narayanan et al. 2021, §5.1, equation 4).
    """
    return 8 * tokens * parameters / (ranks * per_second) / 86400
