"""Weights as Hugging Face names and lays them out: where each of ours is in their files, and what their settings mean.

The models are the same; only files differ. GPT-2's have the matrices of blocks transposed, [in, out] (`Conv1D`), and
those of query, key and value next to each other in one, `c_attn`. Those of Llama, Mistral, Qwen2 and Qwen3 have every
tensor as it is here, also the order of a head's elements: rotary embedding turns elements i and i + d/2 together there
and here. **Meta's original files of Llama pair 2i and 2i + 1**; their names are others, so that they are refused. Names
may begin with `transformer.` or `model.`. Masks and frequencies that early files have as buffers are left out.

Shapes do not tell the number of heads: weights of 4 heads and 2 key heads fit into a model of 8 and 4, which computes
something else. So `config.json`, which is next to a file, decides. All of it is checked, since it comes from outside.

Source: Hugging Face, `transformers/models/{gpt2,llama,mistral,qwen2,qwen3}`, `modeling_*.py`, `configuration_*.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minitrain.composition.presets import Sizes

CONFIG, INDEX, FILE = "config.json", "model.safetensors.index.json", "model.safetensors"
HEAD, TABLE, TIED = "head.weight", "embedding.tokens.weight", "lm_head.weight"
OUTSIDE = ("embedding.tokens", "embedding.positions", "norm", "head")  # of blocks
THIRDS = ("attention.query", "attention.key", "attention.value")
LONGEST = 2048  # tokens in a sequence, where a run is told none: a model's longest may take a machine's memory

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where a file has one of our tensors."""

    name: str  # of the file's tensor
    transposed: bool = False  # [in, out] there and [out, in] here
    third: int | None = None  # which of its outputs is ours: 0 query, 1 key, 2 value; None: all of them

    def shape(self, own: Shape) -> Shape:
        """The shape of the file's tensor, by that of ours."""
        outputs = own[:1] if self.third is None else (3 * own[0],)
        whole = (*outputs, *own[1:])
        return whole[::-1] if self.transposed else whole

    def region(self, own: Shape, offsets: Shape, sizes: Shape) -> tuple[slice, ...]:
        """Where the file's tensor has a region of ours, of shape `own`; transposed like the tensor."""
        begin = (offsets[0] + (self.third or 0) * own[0], *offsets[1:])
        slices = tuple(slice(o, o + size) for o, size in zip(begin, sizes, strict=True))
        # The file is read in its own layout, and transposed afterwards.
        return slices[::-1] if self.transposed else slices


@dataclass(frozen=True, eq=False)
class Family:
    """What a family of models calls tensors and settings."""

    prefix: str  # of all names but the head's, in most files
    block: str  # what the names of blocks begin with, before their number
    joined: bool  # matrices are transposed, and query, key and value are one
    layers: dict[str, str]  # its names for our layers
    buffers: str  # a pattern of tensors that are no weights
    sizes: dict[str, str]  # its names for our settings
    missing: dict[str, Any]  # our settings, where its own may be missing; 0: as `Sizes` fills it
    usual: dict[str, tuple[Any, ...]]  # settings that we lack: the values with which its models are ours

    def place(self, name: str) -> Place | None:
        """Where one of our tensors is, by its name; None if there is no such tensor. Without the prefix."""
        block = re.match(r"blocks\.(\d+)\.", name)
        layer, _, kind = name[block.end() if block else 0 :].rpartition(".")
        # A name that is in the wrong place is none of theirs.
        if layer not in self.layers or (block is None) != (layer in OUTSIDE):
            return None
        matrix = self.joined and block is not None and kind == "weight" and not layer.endswith("norm")
        third = THIRDS.index(layer) if self.joined and layer in THIRDS else None
        return Place(f"{f'{self.block}.{block[1]}.' if block else ''}{self.layers[layer]}.{kind}", matrix, third)

    def places(self, ours: Collection[str], there: Collection[str]) -> dict[str, Place]:
        """Where a file has the tensors that a run asks for; one that the family lacks keeps our name."""
        prefix = self.prefix if any(name.startswith(self.prefix) for name in there) else ""
        found = {}
        for name in ours:
            # A file without a head has the table of tokens in its place.
            at = self.place(TABLE if name == HEAD and TIED not in there else name)
            # The head never has the prefix.
            found[name] = at._replace(name=at.name if at.name == TIED else prefix + at.name) if at else Place(name)
        return found

    def left_out(self, name: str) -> bool:
        """Whether a file's tensor is no weight."""
        return re.fullmatch(self.buffers, name.removeprefix(self.prefix)) is not None


GPT2 = Family(
    "transformer.", "h", True,
    layers={
        "embedding.tokens": "wte", "embedding.positions": "wpe", "norm": "ln_f", "head": "lm_head",
        "attention_norm": "ln_1", **dict.fromkeys(THIRDS, "attn.c_attn"), "attention.output": "attn.c_proj",
        "mlp_norm": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
    },
    buffers=r"h\.\d+\.attn\.(masked_)?bias",
    sizes={
        "layers": "n_layer", "hidden": "n_embd", "heads": "n_head", "positions": "n_positions",
        "vocabulary": "vocab_size", "mlp_hidden": "n_inner", "norm_eps": "layer_norm_epsilon",
        "tied": "tie_word_embeddings",
    },
    missing={"mlp_hidden": 0, "norm_eps": 1e-5, "tied": True},
    usual={
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
    },
)  # fmt: skip
LLAMA = Family(
    "model.", "layers", False,
    layers={
        "embedding.tokens": "embed_tokens", "norm": "norm", "head": "lm_head",
        "attention_norm": "input_layernorm", "attention.query": "self_attn.q_proj",
        "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
        "attention.query_norm": "self_attn.q_norm", "attention.key_norm": "self_attn.k_norm",
        "attention.output": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm",
        "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    },
    buffers=r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq",
    sizes={
        "layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
        "positions": "max_position_embeddings", "vocabulary": "vocab_size", "kv_heads": "num_key_value_heads",
        "head_size": "head_dim", "mlp_hidden": "intermediate_size", "norm_eps": "rms_norm_eps",
        "tied": "tie_word_embeddings",
    },
    missing={"kv_heads": 0, "head_size": 0, "norm_eps": 1e-6, "tied": False},
    usual={
        "hidden_act": ("silu", "swish"), "attention_bias": (False,), "mlp_bias": (False,), "partial_rotary_factor": (1,)
    },
)  # fmt: skip
_FORM = {"norm": "rms", "mlp": "swiglu", "positions_kind": "rope", "qk_norm": False, "biases": "none", "experts": 0}
# By `model_type`: the family, and what its models are. Mistral's without a window are Llama's, and exported as such.
KINDS: dict[str, tuple[Family, dict[str, Any]]] = {
    "gpt2": (GPT2, _FORM | {"norm": "layer", "mlp": "gelu", "positions_kind": "learned", "biases": "all"}),
    "llama": (LLAMA, _FORM),
    "mistral": (LLAMA, _FORM),
    "qwen2": (LLAMA, _FORM | {"biases": "qkv"}),
    "qwen3": (LLAMA, _FORM | {"qk_norm": True}),
}
# Llama 3.1's rule, of which only the factor is an option here.
_STRETCHED = {"low_freq_factor": (1,), "high_freq_factor": (4,), "original_max_position_embeddings": (8192,)}
_TYPES = {"norm_eps": float, "tied": bool}
_WORDS = {int: "a whole number from 1 to 2^31", float: "a number from 0 to 2^31", bool: "true or false"}


def family_of(there: Collection[str]) -> Family | None:
    """Whose names a file has; None for our own."""
    tables = {family: f"{family.layers['embedding.tokens']}.weight" for family in (GPT2, LLAMA)}
    return next((each for each, name in tables.items() if name in there or each.prefix + name in there), None)


def located(path: Path) -> Path:
    """The file of weights, or the index of several, that a path means: itself, or what its folder holds."""
    if not path.is_dir():
        return path
    # As in transformers, one file goes before several.
    for name in (FILE, INDEX):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path} has no {FILE} and no {INDEX}; name the file that you mean")


def parts(index: Path) -> dict[str, list[str]]:
    """The files of an index, each with the tensors that it has; a ValueError if they are not next to the index."""
    listed = read(index).get("weight_map")
    if not isinstance(listed, dict) or not listed or not all(isinstance(each, str) for each in listed.values()):
        raise ValueError(f"{index} lists no files: weight_map={listed!r:.80} is no table of names")
    found: dict[str, list[str]] = {}
    for name, file in listed.items():
        # An index may come from anywhere, and must not lead elsewhere.
        if Path(file).name != file or "\\" in file or not file.endswith(".safetensors"):
            raise ValueError(f"{index} lists {file!r}, which is no safetensors file next to it")
        found.setdefault(file, []).append(name)
    return found


def read(file: Path) -> dict[str, Any]:
    """A table in JSON; a ValueError if it is none, or has a name twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(found := dict(pairs)) < len(pairs):
            raise ValueError("it has a name twice")
        return found

    try:
        found = json.loads(file.read_text("utf-8"), object_pairs_hook=once)
        if not isinstance(found, dict):
            raise ValueError("it is no table")
    except (ValueError, RecursionError) as error:  # no UTF-8, or no JSON
        raise ValueError(f"{file} cannot be read: {error}") from None
    return found


def options(file: Path, positions: int | None = None) -> dict[str, Any]:
    """The settings of the model whose `config.json` this is, by our names; a ValueError if our model cannot be it.

    With rope, the length of sequences is the run's (`positions`), or if that is None the model's, up to `LONGEST`.
    """
    config = read(file)
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{file} has model_type={kind!r:.80}, and this model can be one of {', '.join(KINDS)}")
    family, form = KINDS[kind]
    try:
        found = {
            ours: _value(config, theirs, _TYPES.get(ours, int), family.missing.get(ours, ...))
            for ours, theirs in family.sizes.items()
        }
        strange = _strange(config, family.usual)
        if family is LLAMA:
            rope, more = _rope(config)
            window, longest = _window(config, kind), found["positions"]
            found |= rope | {"positions": positions or min(longest, window or longest, LONGEST)}
            slides = window is not None and window < found["positions"]
            strange += more + [f"sliding_window={window}, used by more than --positions {window},"] * slides
    except ValueError as error:
        raise ValueError(f"{file} {error}") from None
    if strange:
        raise ValueError(f"{file} has {', '.join(strange)} which this model cannot have")
    told = form | found
    return {name: getattr(Sizes(**told), name) for name in told}


def _value(table: Mapping[str, Any], name: str, kind: type, missing: Any = ...) -> Any:
    """A setting, which must be of its kind."""
    value = table.get(name)
    if value is None:
        if missing is ...:
            raise ValueError(f"lacks {name}")
        return missing
    # Not `isinstance`, which takes True for a whole number.
    sound = type(value) is kind or (kind is float and type(value) is int)
    # Not `value <= 0`, which is false for NaN.
    if not sound or (kind is not bool and not 0 < value <= 1 << 31):
        raise ValueError(f"has {name}={value!r:.80}, where {_WORDS[kind]} is expected")
    return kind(value)


def _strange(table: Mapping[str, Any], usual: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """The settings that have none of their usual values."""
    return [f"{name}={table[name]!r:.80}" for name, values in usual.items() if table.get(name) not in (None, *values)]


def _rope(config: Mapping[str, Any]) -> tuple[dict[str, float], list[str]]:
    """Our settings of rotary positions, and those that we lack."""
    # The first since version 5 of transformers, the second before.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"has rope_scaling={rope!r:.80}, which is no table")
    base = _value(rope, "rope_theta", float, _value(config, "rope_theta", float, 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    usual = dict.fromkeys(("rope_type", "type"), (kind,) if kind in ("default", "llama3") else ())
    # Whatever else changes rotations would change them without a word.
    usual |= dict.fromkeys(sorted(rope.keys() - {*usual, "rope_theta", "factor", *_STRETCHED}), (1,))
    if kind != "llama3":
        return {"rope_base": base, "rope_factor": 1.0}, _strange(rope, usual)
    return {"rope_base": base, "rope_factor": _value(rope, "factor", float)}, _strange(rope, usual | _STRETCHED)


def _window(config: Mapping[str, Any], kind: str) -> int | None:
    """How many tokens a token sees, where not all."""
    # A Mistral that says nothing has one, and a Qwen only if it says so.
    if kind == "mistral" and "sliding_window" not in config:
        return 4096
    used = _value(config, "use_sliding_window", bool, not kind.startswith("qwen"))
    return _value(config, "sliding_window", int, None) if used else None


def different(there: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """How a run's model differs from that of a `config.json`, with the options that would do; empty if it does not."""
    names = [name for name, value in there.items() if run[name] != value]
    apart = ", ".join(f"{name}={there[name]} there and {run[name]} in the run" for name in names)
    return apart and f"{apart}; use {_flags({name: there[name] for name in names})}"


def _flags(settings: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())


def sizes(family: Family, there: Mapping[str, Shape]) -> str:
    """What shapes tell of a file's model, as options."""
    shapes = {name.removeprefix(family.prefix): shape for name, shape in there.items()}
    numbers = (re.match(rf"{family.block}\.(\d+)\.", name) for name in shapes)
    table = (*shapes.get(f"{family.layers['embedding.tokens']}.weight", ()), 0, 0)
    found = {"layers": len({each[1] for each in numbers if each}), "hidden": table[1], "vocabulary": table[0]}
    name, other = ("positions", "wpe.weight") if family is GPT2 else ("mlp_hidden", "layers.0.mlp.up_proj.weight")
    return f"its sizes are {_flags(found | {name: (*shapes.get(other, ()), 0)[0]})}"


def configuration(run: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The `config.json` of a model of these settings with weights of this dtype; a ValueError if no family has it."""
    plain = run["kv_heads"] == run["heads"] and run["head_size"] * run["heads"] == run["hidden"]
    # GPT-2 has heads of one kind, which share out the width.
    fit = [kind for kind, (family, form) in KINDS.items() if form.items() <= run.items() and (plain or family is LLAMA)]
    if not fit:
        about = ", ".join(f"{name}={run[name]}" for name in (*_FORM, "kv_heads", "head_size"))
        raise ValueError(f"none of {', '.join(KINDS)} has {about}; leave out --format to write our names")
    kind, family = fit[0], KINDS[fit[0]][0]
    name = {"gpt2": "GPT2LMHeadModel"}.get(kind, f"{kind.capitalize()}ForCausalLM")
    found: dict[str, Any] = {"architectures": [name], "model_type": kind, "torch_dtype": dtype}
    found |= {theirs: run[ours] for ours, theirs in family.sizes.items()}
    if family is GPT2:
        return found | {"activation_function": "gelu_new"}
    rule = {"rope_type": "llama3", "factor": run["rope_factor"]} | {name: each[0] for name, each in _STRETCHED.items()}
    found |= {"rope_theta": run["rope_base"], "rope_scaling": rule if run["rope_factor"] != 1 else None}
    return found | {"hidden_act": "silu"}
