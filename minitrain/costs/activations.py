"""Activations kept for backward, in 16 bits and with dropout, under tensor and sequence parallelism and recomputation.

The account of Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", whose sections
are cited: 2 bytes per element, 1 of a dropout mask, attention written out; statistics of norms and token numbers are
left out. b batch, s sequence, h hidden, a heads, t tensor-parallel ranks.
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
    """Bytes that one layer keeps on one rank by operation, in the order of forward; 0 for what is dropped (§4.1 to §5).

    Args:
        sequence_parallel: Norms, dropouts and the inputs of attention and MLP are cut along the sequence. The gathered
            inputs are dropped, and gathered again in backward; where they are kept, add `gathered_inputs`.
        recompute: "none", "selective" (without the terms with s²) or "full" (only the layer's input, 2sbh; with
            sequence parallelism 2sbh/t, which the paper does not consider).

    Raises:
        ValueError: A size is below 1 or cannot be split over `tensor`, or `recompute` is unknown.
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
    """sbh(10 + 24/t + 5as/(ht)) bytes that one layer keeps on one rank, sbh/t · (34 + 5as/h) with sequence parallelism.

    The last term is missing under selective recomputation; 2sbh remain under full (table 2).
    """
    return sum(layer_terms(batch, seq, hidden, heads, tensor, sequence_parallel, recompute).values())


def gathered_inputs(batch: int, seq: int, hidden: int, tensor: int) -> float:
    """4sbh(1 − 1/t): bytes that a layer with sequence parallelism keeps for its gathered inputs, if at all (§4.2.2)."""
    check(tensor, True, "none", batch=batch, seq=seq, hidden=hidden)
    whole = 4 * batch * seq * hidden
    return whole - whole / tensor


def check(tensor: int, sequence_parallel: bool, recompute: str, **sizes: int) -> None:
    """Check that such a layer is possible; the ValueError names the argument, its value, and valid ones."""
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
