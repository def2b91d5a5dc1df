"""Bytes that a rank keeps from forward to backward, exactly, in any layout and dtype; and its peak under a schedule.

The terms of one device (`minitrain.costs.memory`), each divided as its chapter says; inputs that sequence parallelism
gathers are not kept. Notation as in `minitrain.costs.composition`. `tensor`: tensor-parallel ranks; `item`: w.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minitrain.costs import memory, vocabulary
from minitrain.costs.composition import Shape

_DIVIDED = ("attention: ", "output projection: ", "GELU: ", "down projection: ")
_SUM, _SOFTMAX, _MASK = "attention: log of the softmax's sum", "attention: softmax", "attention: mask"
_OUTPUT = "attention: output of all tokens, of some heads"
_ANGLES = "positions: cosines and sines"
_CORE = (_SUM, _SOFTMAX, _MASK, _OUTPUT)


def layer_kept(
    batch: int,
    shape: Shape,
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
    item: int = 4,
    fused: bool = True,
    dropout: bool = False,
    mode: str | None = None,
    context: int = 1,
) -> int:
    """Bytes that a dense layer keeps on a rank from forward to backward (Korthikanti et al. 2022, §4.2 and §5).

    Inside attention and MLP, terms are divided by the tensor-parallel ranks, others with sequence parallelism. Dropout
    adds a 1-byte mask after each; without a fused kernel, also that of the weights, and the softmax twice. Rotary
    positions keep h/2a cosines and twice as many sines per position, whole on each rank.

    Args:
        recompute: "none", "selective" (the core of attention), or "full" (all but the layer's input).
        fused: Attention is one kernel, which keeps no scores.
        mode: How context-parallel ranks share attention; `shape` then has a rank's positions. None keeps scores;
            ulysses, and each written-out kernel, has its outputs a second time.
        context: Ranks that share attention. Under ulysses each keeps the keys that it uses, of all tokens.
    """
    seq, outside = shape.positions, tensor if sequence else 1
    wide = batch * seq * shape.hidden
    if recompute == "full":
        return item * wide // outside
    again = mode == "ulysses" or (mode is not None and not fused)
    fused = fused or mode is not None
    terms = memory.gpt_layer_activations(batch, seq, shape.hidden, shape.heads, fused, item)
    tokens, wider, inner = batch * seq, max(4, item), item * batch * seq * shape.mlp_width
    # What several ranks hold of the same head counts for each: all terms of attention are divided below.
    keys = shape.kv_own(tensor) * tensor
    repeated = not fused and recompute != "selective"  # for each query head, where scores are written out
    used = shape.width if repeated else keys
    if mode == "ulysses" and recompute == "none":  # else they are exchanged again
        used = shape.head * max(shape.kv_heads_used(tensor, context)) * context * tensor
    terms["attention: query, key and value"] = item * tokens * (shape.width + 2 * used)
    terms["output projection: its input"] = item * tokens * shape.mixed_width
    terms |= {"GELU: its input": inner * (2 if shape.gated else 1), "down projection: its input": inner}
    if shape.rms:
        # x as it came, and 1/r in float32 at least (`minitrain.models.norm`).
        terms |= {f"{norm} norm: mean and 1/deviation": wider * tokens for norm in ("attention", "MLP")}
    if shape.qk_norm:
        both = shape.width + keys
        terms["attention: queries and keys before their norms"] = tokens * (item * both + wider * both // shape.head)
    if shape.latent:
        terms |= _latent_terms(tokens, shape, item)
    if again:
        terms[_OUTPUT] = item * tokens * shape.mixed_width
    if fused:
        terms[_SUM] = wider * tokens * shape.heads  # in float32 at least
    if recompute == "selective":
        terms = {name: size for name, size in terms.items() if name not in _CORE}
    if dropout:
        terms |= {"dropout: masks": 2 * wide}
        if _SOFTMAX in terms:
            terms[_SOFTMAX] += terms[_SOFTMAX] + terms[_SOFTMAX] // item
    if not shape.learned:
        terms[_ANGLES] = wider * seq * 3 * ((shape.latent.rotated if shape.latent else shape.head) // 2)
    cut = {name: tensor if name.startswith(_DIVIDED) else outside for name in terms} | {_MASK: 1, _ANGLES: 1}
    return sum(size // cut[name] for name, size in terms.items())


def _latent_terms(tokens: int, shape: Shape, item: int) -> dict[str, int]:
    """Of latent attention, with keys and values made for all heads, as training has them; counted on no module."""
    assert shape.latent is not None
    queries, keys, _, rotated, value = shape.latent
    # Before and after the norm of each narrow vector; 1/r in float32.
    narrow = item * tokens * (2 * queries + 2 * keys + rotated) + 2 * max(4, item) * tokens
    wide = item * tokens * (2 * shape.width + shape.heads * value)
    return {"narrow vectors": narrow, "attention: query, key and value": wide}


def mixture_kept(
    batch: int,
    shape: Shape,
    routes: int,
    tensor: int = 1,
    sequence: bool = False,
    recompute: str = "none",
    item: int = 4,
    dropout: bool = False,
) -> int:
    """Bytes that a layer with experts keeps, nearly: a dense layer's attention, and 2h for each row and 8h inside.

    A row is kept as it enters (h), before and after GELU (4h each; if gated, three times an expert's width in all), and
    as it returns (h). With dropout, attention is written out. `routes`: rows that the rank's experts get.
    """
    dense = layer_kept(batch, shape, tensor, sequence, recompute, item, not dropout, dropout)
    if recompute == "full":
        return dense
    tokens, inside = batch * shape.positions, 3 if shape.gated else 2  # tensors inside an MLP
    wide = tokens * shape.hidden * item
    gathered = wide - wide // tensor if sequence else 0
    mlp = inside * tokens * (shape.mlp_width - shape.shared_experts * shape.expert_width) * item // tensor
    return dense - mlp + gathered + (2 * shape.hidden + inside * shape.expert_width // tensor) * routes * item


def ends_kept(
    batch: int,
    shape: Shape,
    first: bool,
    last: bool,
    tensor: int = 1,
    sequence: bool = False,
    item: int = 4,
    dropout: bool = False,
) -> tuple[int, int]:
    """Bytes that embedding and output keep, in so many of the first and of the last stage; 0 for what is elsewhere.

    Embedding: token numbers, learned positions, the dropout's mask. Output: the last norm's input and statistics, the
    head's input, targets, and log probabilities in float32 at least; where the vocabulary is cut, this rank's logits,
    and of each token largest logit, sum, and whether and where its target is.
    """
    tokens, outside = batch * shape.positions, tensor if sequence else 1
    numbers = (8 + (tensor > 1)) * tokens + 8 * shape.learned * shape.positions // outside if first else 0
    if first and dropout:
        numbers += tokens * shape.hidden // outside
    if not last:
        return numbers, 0
    statistics = max(4, item) if shape.rms else 2 * item
    wide = (2 * shape.hidden * item + statistics) * tokens // outside
    logits = vocabulary.rows(shape.vocabulary, tensor) * tokens
    if tensor == 1:
        return numbers, wide + 8 * tokens + max(4, item) * (logits + 1)
    return numbers, wide + item * logits + (2 * max(4, item) + 8 + 2) * tokens + 8


def peak_kept(
    row: Iterable[tuple[int, str]], kept: Mapping[int, int], output: Mapping[int, int], again: Mapping[int, int]
) -> int:
    """Most bytes kept at once over a rank's row of a schedule, from a micro-batch's forward to the end of B, or of W.

    When backward computes a layer again, what the output kept has been freed (Korthikanti et al. 2022, §4.2.3).

    Args:
        row: Stage and kind ("F", "B", "I", "W") of each action of the rank, in order.
        kept: For each stage the bytes that a micro-batch keeps, with `output`, those of the output on the last stage.
        again: Bytes that recomputation brings back while backward is in one layer.
    """
    held = most = 0
    for stage, kind in row:
        if kind == "F":
            held += kept[stage]
            most = max(most, held)
        elif kind in "BI":
            most = max(most, held - output[stage] + again[stage])
        if kind in "BW":
            held -= kept[stage]
    return most
