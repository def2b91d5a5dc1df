"""The operations of a step, stage by stage and in all, and the days of a training.

A product of an m × n matrix with one of n × p counts as 2mnp operations; all else is small and left out.

Notation as in `minitrain.costs.composition`.
"""

from __future__ import annotations

from typing import NamedTuple

from minitrain.costs import mixture_of_experts, recomputation, vocabulary
from minitrain.costs.composition import Shape, layers_of


class Work(NamedTuple):
    """Floating-point operations of a stage for one micro-batch, on one tensor-parallel rank.

    Attributes:
        forward: F.
        backward: I, backward for the input, with what is computed again.
        weight: W, backward for the weights.
    """

    forward: int
    backward: int
    weight: int

    def __add__(self, other: tuple[int, int, int]) -> Work:  # type: ignore[override]
        return Work(*(mine + its for mine, its in zip(self, other, strict=True)))


def layer_work(batch: int, shape: Shape, layer: int, rows: int = 0, tensor: int = 1, recompute: str = "none") -> Work:
    """F = 24bsh² + 4bs²h of a dense layer, over t; I as much and the core once more; W without the core.

    A mixture has 16h² for each of its rows and 2hE for each token and gate, on every tensor-parallel rank, in place of
    the MLP's 16bsh².

    Source: Narayanan et al. 2021, appendix; `minitrain.costs.mixture_of_experts`.
    """
    tokens, h = batch * shape.positions, shape.hidden
    core = recomputation.core_flops(batch, shape.positions, h) // tensor
    products = (recomputation.layer_flops(batch, shape.positions, h) // tensor) - core
    if shape.is_mixture(layer):
        products -= 16 * tokens * h * h // tensor
        products += mixture_of_experts.expert_flops(rows, h, 4 * h)
        products += shape.gates * mixture_of_experts.router_flops(tokens, h, shape.experts)
    again = {"none": 0, "selective": core, "full": products + core}[recompute]
    return Work(products + core, products + 2 * core + again, products)


def head_work(batch: int, shape: Shape, tensor: int = 1) -> Work:
    """2bshV, over t with the vocabulary padded, for each of the three."""
    return Work(*[2 * batch * shape.positions * shape.hidden * vocabulary.rows(shape.vocabulary, tensor)] * 3)


def stage_work(
    batch: int,
    shape: Shape,
    stages: int,
    stage: int,
    rows: int = 0,
    tensor: int = 1,
    recompute: str = "none",
) -> Work:
    """A stage's layers, and on the last one the head. Looking up embeddings counts nothing."""
    total = Work(0, 0, 0)
    for layer in layers_of(shape.layers, stages, stage):
        total += layer_work(batch, shape, layer, rows, tensor, recompute)
    return total + head_work(batch, shape, tensor) if stage == stages - 1 else total


def step_flops(batch: int, shape: Shape, rows: int = 0, recompute: str = "none") -> int:
    """Operations of a step, all ranks together and without padding: 72bsLh²(1 + s/6h + V/12hL) without recomputation.

    With full recomputation 96bsLh²(1 + s/6h + V/16hL).

    Args:
        batch: Sequences in the step.
        shape: The model.
        rows: Rows that routers make of the whole batch, in each mixture.
        recompute: "none" for the model's operations, or what is computed again.

    Source: Narayanan et al. 2021, §5.1, equation 3, and appendix.
    """
    return sum(stage_work(batch, shape, 1, 0, rows, 1, recompute))


def step_seconds(flops: float, ranks: int, per_second: float) -> float:
    """Seconds of a step: flops / (ranks · per_second).

    Where `flops` are those of the model, `per_second` is model FLOP utilisation (MFU) times a rank's peak: what is
    computed again takes time, and does not count. With what is computed again it is hardware FLOP utilisation (HFU).

    Args:
        flops: Operations of a step.
        ranks: Number of ranks.
        per_second: Of these operations, those that a rank really does in a second, idle time included.

    Source: Chowdhery et al. 2022, "PaLM", appendix B; Korthikanti et al. 2022, table 5.
    """
    return flops / (ranks * per_second)


def days(tokens: float, step_tokens: int, flops: float, ranks: int, per_second: float) -> float:
    """Days of training: (tokens/step_tokens) · flops / (ranks · per_second).

    Args:
        tokens: Tokens to train on.
        step_tokens: Tokens of a step.
        flops: Operations of a step.
        ranks: Number of ranks.
        per_second: Operations that a rank really does in a second, idle time included.

    Source: Narayanan et al. 2021, §5.1, before equation 4 drops small terms.
    """
    return tokens / step_tokens * step_seconds(flops, ranks, per_second) / 86400


def days_estimate(tokens: float, parameters: float, ranks: int, per_second: float) -> float:
    """8TP/(nX) seconds, in days: two operations per parameter and token forward, four backward, two recomputed in full.

    `days` counts 8T · 12Lh² and s/6h + V/16hL of it more; P counts embeddings, too. For GPT-3 `days` is 2.7 % more.

    Source: Narayanan et al. 2021, §5.1, equation 4.
    """
    return 8 * tokens * parameters / (ranks * per_second) / 86400
