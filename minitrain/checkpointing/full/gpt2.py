"""GPT-2's weights as Hugging Face names and lays them out, and where each of ours is in such a file.

The models are the same: pre-norm blocks, biases everywhere, GELU by tanh, an epsilon of 1e-5 in norms, a head that is
the table of tokens. Only files differ. Theirs has the matrices of blocks transposed, [in, out] (`Conv1D`), and those of
query, key and value next to each other in one, `c_attn`. Names may begin with `transformer.`. Masks that early files
have as buffers are left out.

Source: Hugging Face, `transformers/models/gpt2/modeling_gpt2.py`; Radford et al. 2019, §2.3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

HEAD, TABLE = "head.weight", "embedding.tokens.weight"
BUFFERS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
PREFIX, TIED = "transformer.", "lm_head.weight"
OURS = {
    "embedding.tokens": "wte",
    "embedding.positions": "wpe",
    "norm": "ln_f",
    "head": "lm_head",
    "attention_norm": "ln_1",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
THIRDS = ("attention.query", "attention.key", "attention.value")

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


def place(name: str) -> Place | None:
    """Where one of our tensors is, by its name; None if GPT-2 has no such tensor. Without the prefix."""
    block = re.match(r"blocks\.(\d+)\.", name)
    layer, _, kind = name[block.end() if block else 0 :].rpartition(".")
    # The first four are outside of blocks: a name that is in the wrong place is none of GPT-2's.
    if layer not in OURS or (block is None) != (layer in list(OURS)[:4]):
        return None
    matrix = block is not None and kind == "weight" and not layer.endswith("norm")
    third = THIRDS.index(layer) if layer in THIRDS else None
    return Place(f"{f'h.{block[1]}.' if block else ''}{OURS[layer]}.{kind}", matrix, third)


def recognized(names: Collection[str]) -> bool:
    """Whether a file with tensors of these names has GPT-2's."""
    return any(name.removeprefix(PREFIX) in ("wte.weight", "wpe.weight") for name in names)


def places(ours: Collection[str], there: Collection[str]) -> dict[str, Place]:
    """Where a file has the tensors that a run asks for; one that GPT-2 lacks keeps its name, which it lacks, too."""
    prefix = PREFIX if any(name.startswith(PREFIX) for name in there) else ""
    found = {}
    for name in ours:
        # A file without a head has the table of tokens in its place.
        at = place(TABLE if name == HEAD and TIED not in there else name) or Place(name)
        # The head never has the prefix.
        found[name] = at if at.name in (TIED, name) else at._replace(name=prefix + at.name)
    return found


def left_out(name: str) -> bool:
    """Whether a file's tensor is no weight."""
    return BUFFERS.fullmatch(name.removeprefix(PREFIX)) is not None


def sizes(there: Mapping[str, Shape]) -> str:
    """The sizes of a file's model as options; heads leave no trace in shapes."""
    shapes = {name.removeprefix(PREFIX): shape for name, shape in there.items()}
    layers = {found[1] for name in shapes if (found := re.match(r"h\.(\d+)\.", name))}
    vocabulary, hidden = (*shapes.get("wte.weight", ()), 0, 0)[:2]
    positions = (*shapes.get("wpe.weight", ()), 0)[0]
    found = f"--layers {len(layers)} --hidden {hidden} --positions {positions} --vocabulary {vocabulary}"
    return f"its sizes are {found}, with learned positions and no experts"
