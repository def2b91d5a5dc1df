"""The parameters that a rank holds of a model in any layout: the chapters' formulas put together, with all padding.

A router is whole on each tensor-parallel rank; a tied embedding that first and last stage share on one rank is held
once. L layers, h hidden, s sequence, V vocabulary and V' with padding, E
experts; b sequences in a micro-batch, m micro-batches; dp, pp, tp, ep ranks of each axis; w bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

from minitrain.costs import vocabulary

TABLE = "embedding.tokens.weight"


class Latent(NamedTuple):
    """Multi-head latent attention: queries, and keys with values, are made of narrow vectors (DeepSeek-AI 2024, §2.1).

    Attributes:
        queries: Elements of a token's vector that all queries are made of.
        keys: Of the vector that keys and values are made of.
        plain: Elements of a head's queries and keys that have no position.
        rotated: Those that rope rotates; of a key they are one for all heads.
        value: Elements of a head's values.
    """

    queries: int
    keys: int
    plain: int
    rotated: int
    value: int


class Shape(NamedTuple):
    """A GPT.

    Attributes:
        heads: Attention heads, a.
        positions: s, tokens in a sequence.
        tied: The head uses the embedding's matrix.
        experts: E in place of the MLPs of some layers; 0: none.
        learned: Whether there is a table of positions, of s × h; with rotary embedding there is none.
        kv_heads: Heads of keys and values, which groups of queries share; 0: as many as heads.
        inner: Width of the MLP; 0: 4h.
        gated: Whether MLPs and experts have a third matrix, whose product gates the first's (SwiGLU).
        head_size: Elements of a head, d; 0: h/a.
        rms: Norms are RMSNorms: no bias, and one statistic of a token in place of two.
        biases: Which products have them: "all"; "qkv", those of queries, keys and values only; or "none".
        qk_norm: Whether each head's queries and keys have an RMSNorm.
        expert_inner: Width of an expert; 0: the MLP's.
        shared_experts: Experts that see all tokens: an MLP of so many times an expert's width.
        mixture_every: Of so many layers the last has experts: 2 for the second, the fourth, ….
        dense_first: So many layers at the beginning have none.
        router_bias: Whether a router adds a number for each expert, by which the load is balanced.
        latent: Of latent attention; None: the usual one.
        chosen: Experts that see a token, which `minitrain.costs.layout` alone reads; others are given rows.
    """

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    tied: bool = True
    experts: int = 0
    learned: bool = True
    kv_heads: int = 0
    inner: int = 0
    gated: bool = False
    head_size: int = 0
    rms: bool = False
    biases: str = "all"
    qk_norm: bool = False
    expert_inner: int = 0
    shared_experts: int = 0
    mixture_every: int = 2
    dense_first: int = 0
    router_bias: bool = False
    latent: Latent | None = None
    chosen: int = 1

    @property
    def head(self) -> int:
        """Elements of a head's queries."""
        return self.latent.plain + self.latent.rotated if self.latent else self.head_size or self.hidden // self.heads

    @property
    def width(self) -> int:
        """Elements of a token's queries: h, unless a head has a size of its own."""
        return self.heads * self.head

    @property
    def mixed_width(self) -> int:
        """Elements of a token that attention's core gives back."""
        return self.heads * (self.latent.value if self.latent else self.head)

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, as of its values."""
        return self.head * (self.kv_heads or self.heads)

    def kv_own(self, tensor: int) -> int:
        """Those of a tensor-parallel rank: it has one head where there are more ranks than heads."""
        return self.kv_width // self.kv_pieces(tensor)

    def kv_pieces(self, tensor: int) -> int:
        """Into how many different pieces keys and values are cut."""
        return min(tensor, self.kv_heads or self.heads)

    def kv_heads_used(self, tensor: int, context: int) -> list[int]:
        """Key heads that each rank needs under Ulysses; one that several ranks' queries use counts for each."""
        own, heads = self.heads // tensor // context, self.kv_own(tensor) // self.head
        sharing = own * context // heads
        return [(own * (rank + 1) - 1) // sharing - own * rank // sharing + 1 for rank in range(context)]

    @property
    def mlp_width(self) -> int:
        """Elements of a token inside the MLP."""
        return self.inner or 4 * self.hidden

    @property
    def expert_width(self) -> int:
        """Elements of a token inside an expert."""
        return self.expert_inner or self.mlp_width

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer has experts: the second, the fourth, … (Lepikhin et al. 2020, §2.1), or as said above."""
        return self.experts > 0 and layer >= self.dense_first and (layer + 1) % self.mixture_every == 0


class Parameter(NamedTuple):
    """What a rank holds of one parameter, under its name on one device.

    Attributes:
        whole: Whether every tensor-parallel rank holds all of it.
        expert: Whether it belongs to an expert.
        shape: Of this rank's part of a matrix; empty for a vector.
        partial: Its gradient is to be added over the tensor-parallel ranks that hold the same: so many different pieces
            there are. 0: nothing is to be added, unless sequence parallelism has cut what it was applied to.
    """

    name: str
    elements: int
    whole: bool = False
    expert: bool = False
    shape: tuple[int, ...] = ()
    partial: int = 0

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices and embeddings, but not to norms and biases."""
        return self.name.endswith(".weight") and not self.name.endswith("norm.weight")

    @property
    def hidden(self) -> bool:
        """Whether it is a matrix of a block, which Muon steps."""
        return self.decays and self.name.startswith("blocks.")


def layer_counts(layers: int, stages: int) -> list[int]:
    """Layers of each stage: equally many, the first stages one more, as `pipeline_parallel.splitting.evenly` cuts.

    Raises:
        ValueError: There are more stages than layers, or none.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"stages={stages} must be at least 1 and at most layers={layers}")
    return [layers // stages + (stage < layers % stages) for stage in range(stages)]


def layers_of(layers: int, stages: int, stage: int) -> range:
    """The layers of a stage, by number."""
    counts = layer_counts(layers, stages)
    first = sum(counts[:stage])
    return range(first, first + counts[stage])


def experts_of(experts: int, ranks: int, rank: int) -> range:
    """The experts of an expert-parallel rank: consecutive ones, the first ranks one more."""
    first = rank * (experts // ranks) + min(rank, experts % ranks)
    return range(first, first + experts // ranks + (rank < experts % ranks))


def layer_parameters(shape: Shape, layer: int, tensor: int = 1, experts: Iterable[int] = ()) -> list[Parameter]:
    """What a rank holds of a layer, in the module's order (Shoeybi et al. 2019, §3; counted on `minitrain.models.gpt`).

    Divided are matrices and the biases of column-parallel ones, also of experts. Norms, biases of row-parallel matrices
    and routers are whole. `experts` are those that the rank holds, should the layer be a mixture.
    """
    return list(_held_of(shape, layer, tensor, tuple(experts)))


@cache  # a search for a layout asks for the same layer hundreds of times
def _held_of(shape: Shape, layer: int, tensor: int, experts: tuple[int, ...]) -> tuple[Parameter, ...]:
    name = f"blocks.{layer}"
    attention = _latent_attention if shape.latent else _attention
    found = [*_norm(f"{name}.attention_norm", shape), *attention(f"{name}.attention", shape, tensor)]
    found += _norm(f"{name}.mlp_norm", shape)
    if not shape.is_mixture(layer):
        return (*found, *_mlp(f"{name}.mlp", shape, shape.mlp_width, tensor))
    h, count = shape.hidden, shape.experts
    found.append(Parameter(f"{name}.mlp.router.gate.weight", h * count, whole=True, shape=(count, h)))
    if shape.router_bias:
        found.append(Parameter(f"{name}.mlp.router.bias", count, whole=True))
    for number in experts:
        expert = _mlp(f"{name}.mlp.experts.{number}", shape, shape.expert_width, tensor)
        found += [each._replace(expert=True) for each in expert]
    if shape.shared_experts:
        found += _mlp(f"{name}.mlp.shared", shape, shape.shared_experts * shape.expert_width, tensor)
    return tuple(found)


def _attention(name: str, shape: Shape, tensor: int) -> list[Parameter]:
    h, biased, pieces, found = shape.hidden, shape.biases != "none", shape.kv_pieces(tensor), []
    for part, width, cut in (
        ("query", shape.width, tensor),
        ("key", shape.kv_width, pieces),
        ("value", shape.kv_width, pieces),
    ):
        partial = cut if cut < tensor else 0  # neighboring ranks hold the same head
        found += [each._replace(partial=partial) for each in _column(f"{name}.{part}", h, width, cut, biased)]
    for part in ("query_norm", "key_norm") if shape.qk_norm else ():
        # One weight for all heads, of which each rank norms its own.
        found.append(Parameter(f"{name}.{part}.weight", shape.head, whole=True, partial=tensor > 1))
    return [*found, *_row(f"{name}.output", shape.width, h, tensor, shape.biases == "all")]


def _latent_attention(name: str, shape: Shape, tensor: int) -> list[Parameter]:
    """Its narrow vectors are whole on every tensor-parallel rank, and have an RMSNorm each."""
    assert shape.latent is not None
    h, a, (queries, keys, plain, rotated, value) = shape.hidden, shape.heads, shape.latent
    found = []
    for part, narrow, down, wide in (
        ("query", queries, queries, a * (plain + rotated)),
        ("key_value", keys, keys + rotated, a * (plain + value)),
    ):
        found.append(Parameter(f"{name}.{part}_down.weight", down * h, whole=True, shape=(down, h)))
        found.append(Parameter(f"{name}.{part}_norm.weight", narrow, whole=True))
        found += _column(f"{name}.{part}_up", narrow, wide, tensor, biased=False)
    return [*found, *_row(f"{name}.output", a * value, h, tensor, biased=False)]


def _mlp(name: str, shape: Shape, width: int, tensor: int) -> list[Parameter]:
    found, biased = [], shape.biases == "all"
    for way in ("up", "gate") if shape.gated else ("up",):
        found += _column(f"{name}.{way}", shape.hidden, width, tensor, biased)
    return [*found, *_row(f"{name}.down", width, shape.hidden, tensor, biased)]


def stage_parameters(
    shape: Shape, stages: int, stage: int, tensor: int = 1, experts: Iterable[int] = ()
) -> list[Parameter]:
    """What a rank holds of a stage: its layers; the first stage also the embedding, the last one norm and head.

    A tied head is the embedding's parameter where there is one stage, and otherwise a copy under its name.
    """
    rows = vocabulary.rows(shape.vocabulary, tensor)
    table = rows * shape.hidden, False, False, (rows, shape.hidden)
    experts, found = list(experts), []
    if stage == 0:
        size = shape.positions, shape.hidden
        positions = Parameter("embedding.positions.weight", shape.positions * shape.hidden, whole=True, shape=size)
        found += [Parameter(TABLE, *table), *([positions] if shape.learned else [])]
    for layer in layers_of(shape.layers, stages, stage):
        found += layer_parameters(shape, layer, tensor, experts)
    if stage == stages - 1:
        found += _norm("norm", shape)
        if stages > 1 or not shape.tied:
            found.append(Parameter(TABLE if shape.tied else "head.weight", *table))
    return found


@cache
def model_parameters(shape: Shape) -> int:
    """Parameters of the whole model: L(12h² + 13h) + (V + s)h + 2h of GPT-2, without sh where positions are rotary.

    With grouped queries, a gated MLP and no biases, L(2(a + k)dh + 3fh + 2h) + 2Vh + h of Llama.
    """
    found = stage_parameters(shape, 1, 0, experts=range(1))
    return sum(each.elements * (shape.experts if each.expert else 1) for each in found)


@cache
def expert_parameters(shape: Shape) -> int:
    """Those of `model_parameters` that belong to experts; expert-parallel ranks divide them."""
    found = stage_parameters(shape, 1, 0, experts=range(1))
    return shape.experts * sum(each.elements for each in found if each.expert)


def rank_parameters(
    shape: Shape, stages: int, own: Sequence[int], tensor: int = 1, experts: Iterable[int] = ()
) -> list[Parameter]:
    """What a rank holds of all its stages; a tied table once, also where it has both the first and the last stage."""
    experts = list(experts)
    found = [each for stage in own for each in stage_parameters(shape, stages, stage, tensor, experts)]
    return list({each.name: each for each in found}.values())


def _norm(name: str, shape: Shape) -> list[Parameter]:
    parts = ("weight",) if shape.rms else ("weight", "bias")
    return [Parameter(f"{name}.{part}", shape.hidden, whole=True) for part in parts]


def _column(name: str, inputs: int, outputs: int, tensor: int, biased: bool) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", inputs * outputs // tensor, shape=(outputs // tensor, inputs))
    return [weight, *([Parameter(f"{name}.bias", outputs // tensor)] if biased else [])]


def _row(name: str, inputs: int, outputs: int, tensor: int, biased: bool) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", inputs * outputs // tensor, shape=(outputs, inputs // tensor))
    return [weight, *([Parameter(f"{name}.bias", outputs, whole=True)] if biased else [])]
