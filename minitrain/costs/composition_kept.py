"""Bytes that a rank keeps from forward to backward, exactly, in any layout and dtype; and its peak under a schedule.

The terms are those of one device (`minitrain.costs.memory`), each divided as its chapter says. With sequence
parallelism the gathered inputs are gathered again in backward, and not kept. The account of Korthikanti et al. 2022 is
in `minitrain.costs.activations`; it has 16 bits and written-out attention, and leaves out mean and deviation of norms.

Notation as in `minitrain.costs.composition`.
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
) -> int:
    """Bytes that a dense layer keeps on a rank from forward to backward.

    The terms of one device: those inside attention and MLP are divided by the tensor-parallel ranks, the others with
    sequence parallelism. Dropout adds a mask of one byte per element after attention and MLP; that of attention weights
    is inside the fused kernel, or without one, 1/item of the softmax and the softmax once more.

    Rotary positions keep the cosines of h/2a angles for each position, and the sines with both signs, in float32 at
    least. They are the same for all sequences and heads, so no rank has fewer. Rotated queries and keys are kept in
    place of the others.

    Args:
        batch: Sequences in a micro-batch, b.
        shape: The model.
        tensor: Tensor-parallel ranks.
        sequence: Whether there is sequence parallelism; the gathered inputs are not kept.
        recompute: "none", "selective" (the core of attention), or "full" (all but the layer's input).
        item: Bytes of an element.
        fused: Attention is one kernel, which keeps no scores.
        dropout: Whether there is dropout.
        mode: How attention reaches the tokens of other context-parallel ranks, if there are some; `shape` then has the
            positions that a rank holds. No mode keeps scores, or what has come from others, but ulysses, where a rank
            keeps as many tokens of all, has its outputs a second time; and so have kernels that are written out.

    Source: `minitrain.costs.memory.gpt_layer_activations`; Korthikanti et al. 2022, §4.2 and §5, for what is divided.
    """
    seq, outside = shape.positions, tensor if sequence else 1
    wide = batch * seq * shape.hidden
    if recompute == "full":
        return item * wide // outside
    again = mode == "ulysses" or (mode is not None and not fused)
    fused = fused or mode is not None
    terms = memory.gpt_layer_activations(batch, seq, shape.hidden, shape.heads, fused, item)
    if again:
        terms[_OUTPUT] = item * wide
    if fused:
        terms[_SUM] = max(4, item) * batch * shape.heads * seq  # in float32 at least
    if recompute == "selective":
        terms = {name: size for name, size in terms.items() if name not in _CORE}
    if dropout:
        terms |= {"dropout: masks": 2 * wide}
        if _SOFTMAX in terms:
            terms[_SOFTMAX] += terms[_SOFTMAX] + terms[_SOFTMAX] // item
    if not shape.learned:
        terms[_ANGLES] = max(4, item) * seq * 3 * (shape.hidden // shape.heads // 2)
    cut = {name: tensor if name.startswith(_DIVIDED) else outside for name in terms} | {_MASK: 1, _ANGLES: 1}
    return sum(size // cut[name] for name, size in terms.items())


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
    """Bytes that a layer with experts keeps, nearly: a dense layer's attention, and 10h for each row, 4h twice inside.

    A row is kept as it enters (h), before and after GELU (4h each), and as it comes back, to be weighted (h). Scores
    of the router and numbers of rows are small and left out.

    Args:
        batch: b.
        shape: The model.
        routes: Rows that the rank's experts get.
        tensor: Tensor-parallel ranks; they divide attention, and what is inside an expert.
        sequence: Whether there is sequence parallelism; the router keeps all tokens.
        recompute: As for `layer_kept`.
        item: w.
        dropout: Whether there is dropout, with which attention is written out.
    """
    dense = layer_kept(batch, shape, tensor, sequence, recompute, item, not dropout, dropout)
    if recompute == "full":
        return dense
    mlp = 8 * batch * shape.positions * shape.hidden * item // tensor
    wide = batch * shape.positions * shape.hidden * item
    gathered = wide - wide // tensor if sequence else 0
    return dense - mlp + gathered + (2 * shape.hidden + 8 * shape.hidden // tensor) * routes * item


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

    Embedding: numbers of tokens (where the table is cut, also which of them are elsewhere), positions where these are
    learned, and the mask of dropout. Output: the last norm's input with mean and 1/deviation, the head's input,
    targets, and what the loss keeps: on one device the logarithms of probabilities, in float32 at least, and the number
    of targets. Where the vocabulary is cut, this rank's logits as they are, and of each token largest logit, sum, and
    whether and where its target is.

    Source: `minitrain.costs.memory.gpt_activations`; `minitrain.tensor_parallel.cross_entropy`.
    """
    tokens, outside = batch * shape.positions, tensor if sequence else 1
    numbers = (8 + (tensor > 1)) * tokens + 8 * shape.learned * shape.positions // outside if first else 0
    if first and dropout:
        numbers += tokens * shape.hidden // outside
    if not last:
        return numbers, 0
    wide = (2 * shape.hidden + 2) * tokens * item // outside
    logits = vocabulary.rows(shape.vocabulary, tensor) * tokens
    if tensor == 1:
        return numbers, wide + 8 * tokens + max(4, item) * (logits + 1)
    return numbers, wide + item * logits + (2 * max(4, item) + 8 + 2) * tokens + 8


def peak_kept(
    row: Iterable[tuple[int, str]], kept: Mapping[int, int], output: Mapping[int, int], again: Mapping[int, int]
) -> int:
    """Most bytes kept at once on a rank, over its row of a schedule.

    A micro-batch is held from its forward to the end of its backward (of W, where that is apart: what I releases is not
    counted). When backward computes a layer again, what the output kept has been used and freed.

    Args:
        row: Stage and kind ("F", "B", "I", "W") of each action of the rank, in order.
        kept: For each stage the bytes that a micro-batch keeps, with `output`.
        output: Those of the output, on the last stage.
        again: Bytes that recomputation brings back while backward is in one layer.

    Source: Narayanan et al. 2021, §2.2; Korthikanti et al. 2022, §4.2.3.
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
