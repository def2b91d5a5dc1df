"""Which states each kind of parallelism divides, and by what: ZeRO, tensor, sequence, pipeline, expert, recomputation.

A divisor is what one device holds over what a rank holds; 1 means that the rank holds all of it. The global batch stays
the same, so data parallelism divides activations too: each rank gets a part of the batch. "Nearly" leaves out what is
small. Under tensor parallelism norms, row biases and positions stay whole, and
`minitrain.costs.memory.gpt_shard_parameters` counts them; the first and last stage of a pipeline have the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Setting(NamedTuple):
    """What the divisors depend on.

    Attributes:
        ranks: Ranks of the axis at hand: n, t, p or ep.
        attention: a·s/h: heads times sequence over width.
        experts: x, the part of all parameters that belongs to experts.
    """

    ranks: int
    attention: float = 0.0
    experts: float = 1.0


class Divisor(NamedTuple):
    """By what a state is divided: the formula as a page writes it, and the formula."""

    text: str
    by: Callable[[Setting], float]


class Divided(NamedTuple):
    """By what one kind of parallelism divides each state, and who says so."""

    parameters: Divisor
    gradients: Divisor
    optimizer_states: Divisor
    activations: Divisor
    source: str


class Row(NamedTuple):
    """A line of the table, as text."""

    kind: str
    parameters: str
    gradients: str
    optimizer_states: str
    activations: str
    source: str


def _ranks(letter: str) -> Divisor:
    return Divisor(letter, lambda setting: float(setting.ranks))


def _tensor_activations(setting: Setting) -> float:
    scores = 5 * setting.attention
    return (34 + scores) / (10 + (24 + scores) / setting.ranks)


NOT = Divisor("1", lambda _: 1.0)
N, T, T_NEARLY, P_NEARLY = _ranks("n"), _ranks("t"), _ranks("t, nearly"), _ranks("p, nearly")
EXPERTS = Divisor("1 / (1 − x + x/ep)", lambda s: 1 / (1 - s.experts + s.experts / s.ranks))
TENSOR = Divisor("(34 + 5as/h) / (10 + 24/t + 5as/(ht))", _tensor_activations)
SELECTIVE = Divisor("(34 + 5as/h) / 34", lambda s: (34 + 5 * s.attention) / 34)
FULL = Divisor("(34 + 5as/h) / 2", lambda s: (34 + 5 * s.attention) / 2)

DIVIDES = {
    "data": Divided(NOT, NOT, NOT, N, "Li et al. 2020, §2.2"),
    "ZeRO 1": Divided(NOT, NOT, N, N, "Rajbhandari et al. 2020, §5.1"),
    "ZeRO 2": Divided(NOT, N, N, N, "Rajbhandari et al. 2020, §5.2"),
    "ZeRO 3": Divided(N, N, N, N, "Rajbhandari et al. 2020, §5.3"),
    "tensor": Divided(T_NEARLY, T_NEARLY, T_NEARLY, TENSOR, "Korthikanti et al. 2022, §4.2.1"),
    "tensor + sequence": Divided(T_NEARLY, T_NEARLY, T_NEARLY, T, "Korthikanti et al. 2022, §4.2.2"),
    # L/p layers, and under 1F1B p micro-batches of them on the first stage.
    "pipeline": Divided(P_NEARLY, P_NEARLY, P_NEARLY, NOT, "Korthikanti et al. 2022, §4.2.3"),
    # Tokens move to their experts; where these are balanced, as many come as go.
    "expert": Divided(EXPERTS, EXPERTS, EXPERTS, NOT, "Lepikhin et al. 2021, figure 3"),
    "selective recomputation": Divided(NOT, NOT, NOT, SELECTIVE, "Korthikanti et al. 2022, §5"),
    "full recomputation": Divided(NOT, NOT, NOT, FULL, "Korthikanti et al. 2022, §5"),
}
"""Each kind of parallelism and its divisors. A pipeline's activations are those of the first stage under 1F1B."""


def table() -> list[Row]:
    """The formulas as text, a line for each kind, to print on a page or in a notebook."""
    return [
        Row(
            kind,
            each.parameters.text,
            each.gradients.text,
            each.optimizer_states.text,
            each.activations.text,
            each.source,
        )
        for kind, each in DIVIDES.items()
    ]
