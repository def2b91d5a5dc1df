"""Activations kept for backward, in 16 bits and with dropout, under tensor and sequence parallelism and recomputation.

The account of Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", §4 and table 2,
term by term: an element has 2 bytes and a dropout mask 1. It leaves out what is small compared with b·s·h elements:
mean and deviation of the norms (bs elements each), and token numbers. Attention is written out, as theirs is. A fused
kernel keeps none of the three terms with s², as if it recomputed selectively. What this project's GPT keeps in any
dtype and without dropout, to the byte, is in `minitrain.costs.memory`.

| a layer keeps | bytes | equation |
|---|---|---|
| on one device | sbh(34 + 5as/h) | 1 |
| tensor parallel | sbh(10 + 24/t + 5as/(ht)) | 2 |
| tensor and sequence parallel | sbh/t · (34 + 5as/h) | 4 |
| tensor parallel, selective recomputation | sbh(10 + 24/t) | table 2 |
| tensor and sequence parallel, selective recomputation | 34sbh/t | 6 |
| full recomputation | 2sbh | §5 |

Letters: b batch, s sequence, h hidden, a heads, L layers, V vocabulary, t tensor-parallel ranks, p pipeline stages.
"""

from __future__ import annotations

RECOMPUTE = ("none", "selective", "full")

# What each operation of a layer keeps: bytes for each element of b·s·h or of a·b·s², and what tensor parallelism does
# with it. "whole": the rank keeps all of it, until sequence parallelism cuts it along the sequence. "divided": a rank
# has 1/t of the heads, or of the hidden layer of the MLP.
_TERMS = (
    ("attention norm: its input", 2, "bsh", "whole"),
    ("query, key, value projections: their input", 2, "bsh", "whole"),
    ("QKᵀ: query and key", 4, "bsh", "divided"),
    ("softmax: its output", 2, "abss", "divided"),
    ("softmax dropout: its mask", 1, "abss", "divided"),
    ("attention over V: the dropout's output", 2, "abss", "divided"),
    ("attention over V: the values", 2, "bsh", "divided"),
    ("output projection: its input", 2, "bsh", "divided"),
    ("attention dropout: its mask", 1, "bsh", "whole"),
    ("MLP norm: its input", 2, "bsh", "whole"),
    ("up projection: its input", 2, "bsh", "whole"),
    ("GELU: its input", 8, "bsh", "divided"),
    ("down projection: its input", 8, "bsh", "divided"),
    ("MLP dropout: its mask", 1, "bsh", "whole"),
)


def layer_terms(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> dict[str, float]:
    """Bytes that one layer keeps on one rank, by the operation that keeps them.

    Args:
        batch: Sequences that go through forward at once, b.
        seq: Tokens in a sequence, s.
        hidden: Width of the residual stream, h.
        heads: Attention heads, a.
        tensor: Tensor-parallel ranks, t.
        sequence_parallel: Norms, dropouts and the inputs of attention and MLP are cut along the sequence. The paper's
            way: the gathered inputs are dropped, and gathered again in backward. Else add `gathered_inputs`.
        recompute: "selective" drops what attention makes of Q, K and V: the terms with s². "full" drops all but the
            layer's input, which is the first norm's. With sequence parallelism that input is a shard, 2sbh/t; the
            paper's table has 2sbh, since it uses full recomputation without sequence parallelism.

    Returns:
        All terms, in the order of forward; 0 for what is dropped.

    Raises:
        ValueError: A size is below 1 or cannot be split over `tensor`, or `recompute` is unknown.

    Source: Korthikanti et al. 2022, §4.1, §4.2 and §5.
    """
    check(tensor, sequence_parallel, recompute, batch=batch, seq=seq, hidden=hidden, heads=heads)
    elements = {"bsh": batch * seq * hidden, "abss": heads * batch * seq * seq}
    parts = {"whole": tensor if sequence_parallel else 1, "divided": tensor}
    kept = {}
    for name, size, shape, cut in _TERMS:
        dropped = (recompute == "selective" and shape == "abss") or (recompute == "full" and bool(kept))
        kept[name] = 0.0 if dropped else size * elements[shape] / parts[cut]
    return kept


def layer(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that one layer keeps on one rank: the sum of `layer_terms`, with the same arguments.

    Source: Korthikanti et al. 2022, table 2.
    """
    return sum(layer_terms(batch, seq, hidden, heads, tensor, sequence_parallel, recompute).values())


def gathered_inputs(batch: int, seq: int, hidden: int, tensor: int) -> float:
    """Bytes more that a layer with sequence parallelism keeps when it keeps its gathered inputs, 4sbh(1 − 1/t).

    These are the inputs of attention and MLP, 2sbh each. Keeping them saves an all-gather for each of them in backward.

    Source: Korthikanti et al. 2022, §4.2.2, which drops them.
    """
    check(tensor, True, "none", batch=batch, seq=seq, hidden=hidden)
    whole = 4 * batch * seq * hidden
    return whole - whole / tensor


def computed_again(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that recomputation brings back while backward is in one layer: what that layer would have kept otherwise.

    The paper leaves them out. They count once, whatever the number of layers. Arguments as for `layer_terms`.
    """
    kept = layer(batch, seq, hidden, heads, tensor, sequence_parallel, recompute)
    return layer(batch, seq, hidden, heads, tensor, sequence_parallel) - kept


def extras(
    batch: int,
    seq: int,
    hidden: int,
    vocabulary: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    pipeline: int = 1,
) -> dict[str, float]:
    """Bytes that a rank of the first pipeline stage keeps outside the layers; together sbh/t · (p + 4(1 + V/h)).

    The dropout after the embedding keeps a mask for each of p micro-batches. The last norm, the head and the loss
    belong to the first stage only if there is no other, and are 0 otherwise. The logits are kept in 32 bits, and
    divided over the tensor-parallel ranks as the vocabulary is, rounded up.

    Args:
        batch: Sequences in a micro-batch, b.
        seq: Tokens in a sequence, s.
        hidden: Width of the residual stream, h.
        vocabulary: Number of different tokens, V.
        tensor: Tensor-parallel ranks, t.
        sequence_parallel: Whether what is outside the layers is cut along the sequence, as the paper has it. Without
            it, each rank has all of it except the logits.
        pipeline: Pipeline stages, p; their schedule is 1F1B.

    Raises:
        ValueError: A size is below 1 or cannot be split over `tensor`.

    Source: Korthikanti et al. 2022, §4.3. It says that this is less than 0.01% for its model of 22 billion parameters.
        By this formula it is 0.6% of what the layers keep without recomputation.
    """
    check(
        tensor, sequence_parallel, "none", batch=batch, seq=seq, hidden=hidden, vocabulary=vocabulary, pipeline=pipeline
    )
    wide = batch * seq * hidden / (tensor if sequence_parallel else 1)
    logits = batch * seq * -(-vocabulary // tensor)
    alone = pipeline == 1
    return {
        "embedding dropout: its mask": wide * pipeline,
        "last norm: its input": 2 * wide if alone else 0.0,
        "head: its input": 2 * wide if alone else 0.0,
        "loss: the logits": 4.0 * logits if alone else 0.0,
    }


def model(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    layers: int,
    vocabulary: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    pipeline: int = 1,
) -> float:
    """Bytes that a rank of the first pipeline stage keeps when forward is done: L layers, and `extras`.

    With p stages of L/p layers under 1F1B, the first stage keeps p micro-batches: again L layers.

    Source: Korthikanti et al. 2022, equation 5 and §4.3.
    """
    _check_layers(layers, pipeline)
    one = layer(batch, seq, hidden, heads, tensor, sequence_parallel, recompute)
    outside = extras(batch, seq, hidden, vocabulary, tensor, sequence_parallel, pipeline)
    return layers * one + sum(outside.values())


def peak(
    batch: int,
    seq: int,
    hidden: int,
    heads: int,
    layers: int,
    vocabulary: int,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
    pipeline: int = 1,
) -> float:
    """The most bytes of activations at any time on a rank of the first stage, with what is computed again.

    Backward has used what head and loss keep, and freed it, when it comes to the last layer and computes that again:
    the larger of the two counts. Gradients of activations and what an operation needs while it runs come on top.

    Source: as `model`; the order of backward.
    """
    stored = model(batch, seq, hidden, heads, layers, vocabulary, tensor, sequence_parallel, recompute, pipeline)
    mask, *output = extras(batch, seq, hidden, vocabulary, tensor, sequence_parallel, pipeline).values()
    again = computed_again(batch, seq, hidden, heads, tensor, sequence_parallel, recompute)
    return stored - sum(output) + max(sum(output), again)


def check(tensor: int, sequence_parallel: bool, recompute: str, **sizes: int) -> None:
    """Check that such a layer is possible.

    Raises:
        ValueError: It is not; names the argument, its value, and valid ones.
    """
    for name, size in {**sizes, "tensor": tensor}.items():
        if size < 1:
            raise ValueError(f"{name}={size} must be at least 1")
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r} is unknown; use one of {RECOMPUTE}")
    heads, hidden = sizes.get("heads", 1), sizes["hidden"]
    if hidden % heads:
        raise ValueError(f"hidden={hidden} cannot be split over heads={heads}; use a multiple of {heads} for hidden")
    split = ["hidden", "heads"] + ["seq"] * sequence_parallel
    for name in split:
        if sizes.get(name, 0) % tensor:
            raise ValueError(
                f"{name}={sizes[name]} cannot be split over {tensor} tensor-parallel ranks; use a multiple of {tensor}"
            )


def _check_layers(layers: int, pipeline: int) -> None:
    if layers < 1:
        raise ValueError(f"layers={layers} must be at least 1")
    if pipeline < 1 or layers % pipeline:
        raise ValueError(f"layers={layers} cannot be split over pipeline={pipeline} stages; use a multiple of it")
