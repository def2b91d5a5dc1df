"""The settings of a model: a preset, by its name, with what is given in its place; and what does not fit in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal

PositionsKind = Literal["learned", "rope"]
NormName = Literal["layer", "rms"]
MLPName = Literal["gelu", "swiglu"]
BiasesName = Literal["all", "qkv", "none"]
RouterName = Literal["switch", "expert_choice", "top_k", "bias_balanced"]
# Options of routers: what each is called there, and the routers that have it.
ROUTER_OPTIONS: dict[str, tuple[str, tuple[RouterName, ...]]] = {
    "router_loss": ("loss_factor", ("switch", "top_k")),
    "router_z_loss": ("z_factor", ("top_k",)),
    "router_bias_speed": ("speed", ("bias_balanced",)),
}
Preset = Literal[
    "tiny", "gpt2", "xl", "175b", "1t", "7b", "13b", "llama-tiny", "8b", "70b", "405b", "qwen3-0.6b", "mixtral",
    "deepseek-v3",
]  # fmt: skip
LARGE = ("70b", "175b", "405b", "1t", "deepseek-v3")  # presets that no machine of eight GPUs can train


def _sizes(layers: int, hidden: int, heads: int, positions: int, vocabulary: int, **others: Any) -> dict[str, Any]:
    names = ("layers", "hidden", "heads", "positions", "vocabulary")
    return dict(zip(names, (layers, hidden, heads, positions, vocabulary), strict=True)) | others


_LLAMA = {"norm": "rms", "mlp": "swiglu", "biases": "none", "positions_kind": "rope", "tied": False}
_LLAMA_3 = _LLAMA | {"kv_heads": 8, "rope_base": 5e5}
# What is not here is as in GPT-2. Radford et al. 2019 (gpt2, xl); Brown et al. 2020, table 2.1 (7b, 13b, 175b; the
# first two have 32 and 40 layers of 4096 and 5120); Narayanan et al. 2021, table 1 (1t); Grattafiori et al. 2024,
# table 3 (8b, 70b, 405b); Yang et al. 2025, table 1 (qwen3-0.6b); Jiang et al. 2024, table 1 (mixtral); DeepSeek-AI
# 2024, "DeepSeek-V3", §4.2. Where a paper leaves a size out, it is in the weights' config.json.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": _sizes(4, 128, 4, 64, 256),
    "gpt2": _sizes(12, 768, 12, 1024, 50257),
    "xl": _sizes(48, 1600, 25, 1024, 50257),
    "7b": _sizes(32, 4096, 32, 2048, 50257),
    "13b": _sizes(40, 5120, 40, 2048, 50257),
    "175b": _sizes(96, 12288, 96, 2048, 50257),
    "1t": _sizes(128, 25600, 160, 2048, 51200),
    "llama-tiny": _sizes(4, 128, 4, 64, 256, **_LLAMA, kv_heads=2, mlp_hidden=352),
    "8b": _sizes(32, 4096, 32, 8192, 128256, **_LLAMA_3, mlp_hidden=14336),
    "70b": _sizes(80, 8192, 64, 8192, 128256, **_LLAMA_3, mlp_hidden=28672),
    "405b": _sizes(126, 16384, 128, 8192, 128256, **_LLAMA_3, mlp_hidden=53248),
    "qwen3-0.6b": _LLAMA
    | _sizes(28, 1024, 16, 8192, 151936, kv_heads=8, head_size=128, qk_norm=True, mlp_hidden=3072)
    | {"tied": True, "rope_base": 1e6, "norm_eps": 1e-6},
    "mixtral": _LLAMA
    | _sizes(32, 4096, 32, 8192, 32000, kv_heads=8, mlp_hidden=14336, rope_base=1e6)
    | {"experts": 8, "experts_per_token": 2, "router": "top_k", "mixture_every": 1},
    "deepseek-v3": _LLAMA
    | _sizes(61, 7168, 128, 4096, 129280, mlp_hidden=18432, norm_eps=1e-6)
    | {"experts": 256, "experts_per_token": 8, "expert_hidden": 2048, "shared_experts": 1, "router": "bias_balanced"}
    | {"mixture_every": 1, "dense_first": 3, "router_bias": True, "latent": (1536, 512, 128, 64, 128)},
}


@dataclass(frozen=True)
class Model:
    """The GPT.

    Attributes:
        preset: The model to begin with: tiny and llama-tiny train on two cores in two minutes.
        layers: Blocks; None: the preset's, as for all that has no default here.
        hidden: Width of the residual stream.
        heads: Attention heads.
        positions: Tokens in a sequence.
        vocabulary: Different tokens; None: those of prepared data, otherwise the preset's, but of lines of JSON at
            least 257. Bytes are 256.
        dropout: Probability of dropping an element. Above 0, attention is written out, since a fused kernel would drop
            other weights in every layout; that takes more memory.
        tied: The head uses the weight of the token embedding; --tied False gives it one of its own.
        experts: Experts in place of the MLPs of some blocks; 0: none.
        router: The rule by which experts are chosen.
        positions_kind: A learned row for each position, added to tokens; or rope, which has no table and rotates
            queries and keys, so that weights can be loaded into a run with longer sequences.
        rope_base: Of rope: a larger one rotates more slowly, for longer sequences.
        rope_factor: Of rope: slows slow rotations by so much more (Llama 3.1, from 8192 positions); 1: not.
        kv_heads: Heads of keys and values, each shared by a group of queries.
        head_size: Elements of a head; hidden / heads, unless the preset has another.
        mlp: Two matrices with GELU between them; or swiglu, where a third one's product gates the first's.
        mlp_hidden: Width inside the MLP; four times hidden, unless the preset has another.
        norm: LayerNorm, or RMSNorm, which has no mean and no bias.
        norm_eps: What a norm adds to the variance.
        biases: Which products have them: all; only those of queries, keys and values; or none.
        qk_norm: RMSNorm over each head's queries and keys.
        router_loss: Factor of the loss that balances experts, of switch and top_k, unless it is to be the
            router's own; likewise the next two.
        router_z_loss: Factor of the loss that keeps a router's logits small (ST-MoE's z-loss), of top_k.
        router_bias_speed: By how much a step changes the bias of an expert, of bias_balanced.
        experts_per_token: As many experts see a token, and none is dropped, with top_k and bias_balanced; unless the
            preset has a number, the router has its own. Others are planned and not trained so far.
        expert_hidden: Width inside an expert; mlp_hidden, unless the preset has another.
        shared_experts: Experts that see all tokens, as one of so many times the width.
        mixture_every: Of so many blocks the last has experts; 2, unless the preset has another.
        dense_first: So many blocks at the beginning have none.
    """

    preset: Preset = "tiny"
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    positions: int | None = None
    vocabulary: int | None = None
    dropout: float = 0.0
    tied: bool | None = None
    experts: int | None = None
    router: RouterName | None = None
    router_loss: float | None = None
    router_z_loss: float | None = None
    router_bias_speed: float | None = None
    positions_kind: PositionsKind | None = None
    rope_base: float | None = None
    rope_factor: float | None = None
    kv_heads: int | None = None
    head_size: int | None = None
    mlp: MLPName | None = None
    mlp_hidden: int | None = None
    norm: NormName | None = None
    norm_eps: float | None = None
    biases: BiasesName | None = None
    qk_norm: bool | None = None
    experts_per_token: int | None = None
    expert_hidden: int | None = None
    shared_experts: int | None = None
    mixture_every: int | None = None
    dense_first: int | None = None

    @property
    def sizes(self) -> Sizes:
        """What the model is: the preset, with what is given in its place."""
        return _chosen(self)


@cache  # a search asks for them a hundred thousand times
def _chosen(model: Model) -> Sizes:
    given = {each.name: getattr(model, each.name, None) for each in fields(Sizes)}
    return Sizes(**PRESETS[model.preset] | {name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Sizes:
    """A model without gaps, whatever of it a preset has given. The defaults are GPT-2's.

    Attributes:
        kv_heads: Never 0 here, but as many as heads; likewise the next three.
        experts_per_token: None: the router's own number.
        router_bias: Routers add a number for each expert, by which the load is balanced.
        latent: Widths of latent attention, as `minitrain.costs.composition.Latent` says; none: the usual one.
    """

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int
    tied: bool = True
    kv_heads: int = 0
    head_size: int = 0
    mlp_hidden: int = 0
    expert_hidden: int = 0
    mlp: MLPName = "gelu"
    norm: NormName = "layer"
    norm_eps: float = 1e-5
    biases: BiasesName = "all"
    qk_norm: bool = False
    positions_kind: PositionsKind = "learned"
    rope_base: float = 10000.0
    rope_factor: float = 1.0
    experts: int = 0
    router: RouterName = "switch"
    experts_per_token: int | None = None
    shared_experts: int = 0
    mixture_every: int = 2
    dense_first: int = 0
    router_bias: bool = False
    latent: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        widths = {"kv_heads": self.heads, "mlp_hidden": 4 * self.hidden}
        widths["head_size"] = self.hidden // self.heads if self.heads else 0
        widths["expert_hidden"] = self.mlp_hidden or widths["mlp_hidden"]
        for name, value in widths.items():
            object.__setattr__(self, name, getattr(self, name) or value)


def check_model(model: Model) -> None:
    """What does not fit in a model by itself."""
    sizes = model.sizes
    if sizes.hidden % sizes.heads and sizes.head_size == sizes.hidden // sizes.heads:
        raise ValueError(f"hidden={sizes.hidden} does not divide by heads={sizes.heads}")
    if sizes.heads % sizes.kv_heads:
        raise ValueError(f"kv_heads={sizes.kv_heads} do not divide heads={sizes.heads}")
    rope = sizes.positions_kind == "rope"
    if rope and sizes.head_size % 2:
        raise ValueError(
            f"hidden={sizes.hidden} over heads={sizes.heads} makes heads of {sizes.head_size}, which "
            f"positions_kind='rope' cannot divide into pairs; use a multiple of {2 * sizes.heads} for hidden"
        )
    if not 1 < sizes.rope_base < math.inf:
        raise ValueError(f"rope_base={sizes.rope_base:g} must be above 1 and finite; 10000 is usual")
    if not 1 <= sizes.rope_factor < math.inf:
        raise ValueError(f"rope_factor={sizes.rope_factor:g} must be at least 1 and finite; Llama 3.1 has 8")
    if not 0 < sizes.norm_eps < 1:
        raise ValueError(f"norm_eps={sizes.norm_eps:g} must be above 0 and below 1; 1e-5 is usual")
    for name in ("rope_base", "rope_factor"):
        # Not of a preset: positions that take the place of its rope leave its base behind.
        if not rope and (value := getattr(model, name)) not in (None, getattr(Sizes, name)):
            raise ValueError(
                f"{name}={value:g} changes nothing with positions_kind={sizes.positions_kind!r}; "
                f"use positions_kind='rope', or leave {name} out"
            )
    if sizes.experts and not 1 <= (sizes.experts_per_token or 1) <= sizes.experts:
        raise ValueError(f"experts_per_token={sizes.experts_per_token} are more than experts={sizes.experts}")
    for name in ("experts_per_token", "expert_hidden", "shared_experts", "mixture_every", "dense_first"):
        # Not of a preset, of which `--experts 0` makes a dense model.
        if not sizes.experts and getattr(model, name):
            raise ValueError(f"{name}={getattr(model, name)} needs experts, and the model has none; add experts")
    for name, (_, routers) in ROUTER_OPTIONS.items():
        if (value := getattr(model, name)) is not None:
            if not sizes.experts or sizes.router not in routers:
                raise ValueError(f"{name}={value:g} is for experts with router={' or '.join(routers)}; leave it out")
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value:g} must be at least 0 and finite")
    if sizes.vocabulary < 256:
        raise ValueError(f"vocabulary={sizes.vocabulary} is less than the 256 different bytes of the data")
    if not 0 <= model.dropout < 1:
        raise ValueError(f"dropout={model.dropout} must be at least 0 and below 1")
