"""What a rank holds of a model in any layout: the chapters' formulas put together, with all padding.

A router is whole on each tensor-parallel rank; a tied embedding that first and last stage share on one rank is held
once; gradients have the dtype of parameters. L layers, h hidden, s sequence, V vocabulary and V' with padding, E
experts; b sequences in a micro-batch, m micro-batches; dp, pp, tp, ep ranks of each axis; w bytes per element.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minitrain.costs import memory, mixture_of_experts, optimizers, vocabulary, zero

TABLE = "embedding.tokens.weight"
TOGETHER = 25 * 2**20 // 4
"""Elements of layers that travel together: 25 MB in float32, as in a bucket of torch's DDP."""


class Shape(NamedTuple):
    """A GPT.

    Attributes:
        heads: Attention heads, a.
        positions: s, tokens in a sequence.
        tied: The head uses the embedding's matrix.
        experts: E in place of the MLP of every second layer; 0: none.
        gates: Matrices of h × E that a router has: noisy top-k has 2, the others 1.
        learned: Whether there is a table of positions, of s × h; with rotary embedding there is none.
        kv_heads: Heads of keys and values, which groups of queries share; 0: as many as heads.
        inner: Width of the MLP; 0: 4h.
        gated: Whether the MLP has a third matrix, whose product gates the first's (SwiGLU).
    """

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    tied: bool = True
    experts: int = 0
    gates: int = 1
    learned: bool = True
    kv_heads: int = 0
    inner: int = 0
    gated: bool = False

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys, as of its values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)

    @property
    def mlp_width(self) -> int:
        """Elements of a token inside the MLP."""
        return self.inner or 4 * self.hidden

    def is_mixture(self, layer: int) -> bool:
        """Whether a layer has experts: the second, the fourth, … (Lepikhin et al. 2020, §2.1)."""
        return self.experts > 0 and layer % 2 == 1


class Parameter(NamedTuple):
    """What a rank holds of one parameter, under its name on one device.

    Attributes:
        whole: Whether every tensor-parallel rank holds all of it.
        expert: Whether it belongs to an expert.
        shape: Of this rank's part of a matrix; empty for a vector.
    """

    name: str
    elements: int
    whole: bool = False
    expert: bool = False
    shape: tuple[int, ...] = ()

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
    h, name = shape.hidden, f"blocks.{layer}"
    found = [*_norm(f"{name}.attention_norm", h)]
    for part, width in (("query", h), ("key", shape.kv_width), ("value", shape.kv_width)):
        found += _column(f"{name}.attention.{part}", h, width, tensor)
    found += [*_row(f"{name}.attention.output", h, h, tensor), *_norm(f"{name}.mlp_norm", h)]
    if not shape.is_mixture(layer):
        for way in ("gate", "up") if shape.gated else ("up",):
            found += _column(f"{name}.mlp.{way}", h, shape.mlp_width, tensor)
        return [*found, *_row(f"{name}.mlp.down", shape.mlp_width, h, tensor)]
    for gate in ("gate", "noise_gate")[: shape.gates]:
        gates = f"{name}.mlp.router.{gate}.weight"
        found.append(Parameter(gates, h * shape.experts, whole=True, shape=(shape.experts, h)))
    for number in experts:
        expert = f"{name}.mlp.experts.{number}"
        both = [*_column(f"{expert}.up", h, 4 * h, tensor), *_row(f"{expert}.down", 4 * h, h, tensor)]
        found += [each._replace(expert=True) for each in both]
    return found


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
        found += _norm("norm", shape.hidden)
        if stages > 1 or not shape.tied:
            found.append(Parameter(TABLE if shape.tied else "head.weight", *table))
    return found


def model_parameters(shape: Shape) -> int:
    """L(12h² + 13h) + (V + s)h + 2h parameters of the whole model, without sh where positions are rotary.

    A mixture has E MLPs and a router in place of one MLP.
    """
    table = shape.positions if shape.learned else 0
    h, inner, ways = shape.hidden, shape.mlp_width, 2 if shape.gated else 1
    dense = memory.gpt_parameters(shape.vocabulary, table, shape.layers, h, shape.tied)
    dense -= 2 * shape.layers * (h + 1) * (h - shape.kv_width)  # keys and values that groups share
    plain = sum(not shape.is_mixture(layer) for layer in range(shape.layers))
    dense += plain * ((ways + 1) * h * inner + ways * inner - (8 * h * h + 4 * h))  # the MLP that it really has
    expert = mixture_of_experts.expert_parameters(shape.hidden, 4 * shape.hidden)
    mixture = (shape.experts - 1) * expert + shape.gates * shape.hidden * shape.experts
    return dense + sum(mixture for layer in range(shape.layers) if shape.is_mixture(layer))


def rank_parameters(
    shape: Shape, stages: int, own: Sequence[int], tensor: int = 1, experts: Iterable[int] = ()
) -> list[Parameter]:
    """What a rank holds of all its stages; a tied table once, also where it has both the first and the last stage."""
    experts = list(experts)
    found = [each for stage in own for each in stage_parameters(shape, stages, stage, tensor, experts)]
    return list({each.name: each for each in found}.values())


def _norm(name: str, width: int) -> list[Parameter]:
    return [Parameter(f"{name}.{part}", width, whole=True) for part in ("weight", "bias")]


def _column(name: str, inputs: int, outputs: int, tensor: int) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", inputs * outputs // tensor, shape=(outputs // tensor, inputs))
    return [weight, Parameter(f"{name}.bias", outputs // tensor)]


def _row(name: str, inputs: int, outputs: int, tensor: int) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", inputs * outputs // tensor, shape=(outputs, inputs // tensor))
    return [weight, Parameter(f"{name}.bias", outputs, whole=True)]


def lines(parameters: Sequence[Parameter], stage: int, optimizer: str = "adamw") -> list[list[Parameter]]:
    """The flat buffers of a rank's parameters: of each unit the decaying ones, the others, and those of its experts.

    Units are layers, as many together as have `TOGETHER` elements; the embedding, and norm with head, count as layers.
    In stages 2 and 3 of ZeRO each block is a unit, and the rest is one. Matrices that Muon steps are apart.
    """
    found: dict[tuple[int | str, bool, bool, bool], list[Parameter]] = {}
    units: dict[tuple[str, bool], int] = {}  # the unit of each layer; experts have units of their own
    newest = {True: (0, 0), False: (0, 0)}  # its number, and its elements so far
    for each in parameters:
        first, second, *_ = each.name.split(".")
        rest = "root" if stage >= 2 else "embedding" if first == "embedding" else "end"
        layer = f"{first}.{second}" if first == "blocks" else rest
        unit: int | str = layer
        if stage < 2:
            number, elements = newest[each.expert]
            if (layer, each.expert) not in units and elements >= TOGETHER:
                number, elements = number + 1, 0
            unit = number = units.setdefault((layer, each.expert), number)
            newest[each.expert] = number, elements + each.elements
        found.setdefault((unit, each.expert, each.decays, each.hidden and optimizer == "muon"), []).append(each)
    return list(found.values())


def state_bytes(optimizer: str, item: int, line: Sequence[Parameter]) -> tuple[int, int]:
    """Bytes of optimizer states of a flat buffer: for each element, and in all on each rank, whatever it has of it.

    States are in float32 at least; parameters of 16 bits also have a float32 copy. Adafactor's are whole on each rank
    (Rajbhandari et al. 2020, §3.1; Loshchilov & Hutter 2019, algorithm 2).
    """
    copy = 4 if item < 4 else 0
    one = max(4, item)  # bytes of a state's element
    factored = sum(optimizers.adafactor(each.shape or (each.elements,), one) for each in line)
    states = {
        "adamw": (2 * one, 4),
        "lamb": (2 * one, 4),
        "lars": (one, 0),
        "sgd": (0, 0),
        "adafactor": (0, factored + 4),
        "muon": (one, 0) if line[0].hidden else (2 * one, 4),
    }
    size, whole = states[optimizer]
    return size + copy, whole


def model_states(
    parameters: Sequence[Parameter],
    stage: int,
    data: int,
    replicas: int,
    item: int = 4,
    optimizer: str = "adamw",
    gradient_item: int | None = None,
) -> dict[str, int]:
    """Bytes that a rank holds of "parameters", "gradients" and "optimizer states", as in `minitrain.costs.zero.held`.

    Args:
        data: Data-parallel ranks, over which states of shared parameters are divided.
        replicas: Ranks that hold the same experts, over which those of experts are divided.
        optimizer: "adamw", "sgd", "lamb", "lars", "adafactor" or "muon".
        gradient_item: Bytes of a gradient's element; None: as many as of a parameter's.
    """
    total = {"parameters": 0, "gradients": 0, "optimizer states": 0}
    for line in lines(parameters, stage, optimizer):
        one = zero.Line(sum(each.elements for each in line), item)  # one step counter for all of its tensors
        held = zero.held(
            stage, [one], replicas if line[0].expert else data, *state_bytes(optimizer, item, line), gradient_item
        )
        total = {name: size + held[name] for name, size in total.items()}
    return total
