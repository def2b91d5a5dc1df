"""Which tokens of a sequence each rank holds, as chunks of consecutive positions, and which pairs of chunks interact.

| mode | a rank holds |
|---|---|
| ring, ulysses, gather | one chunk of n: rank r the r-th |
| zigzag | two chunks of 2n: rank r the r-th from the front and the r-th from the back |

Under a causal mask a late token has more keys than an early one. With one chunk each, the last rank does (2n−1) times
the work of the first; with a chunk from the front and one from the back, all ranks have equally much.

**Source.** Zigzag: Zhu 2024, ring-flash-attention; Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2,
cuts so too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

MODES = ("ring", "zigzag", "ulysses", "gather")
Chunks = tuple[range, ...]
"""Positions in rising order, as ranges of consecutive ones."""


def held(mode: str, seq: int, rank: int, ranks: int, device: torch.device | None = None) -> Int[Tensor, " held"]:
    """The true positions of the tokens that a rank holds, in the order in which it holds them, which is rising.

    Where the chunks cannot be equally long, the first ones have one token more.

    Args:
        mode: "ring", "zigzag", "ulysses" or "gather".
        seq: Length of the whole sequence.
        rank: Whose tokens.
        ranks: How many ranks share the sequence.
        device: Of the result; None: the CPU.

    Raises:
        ValueError: The mode is unknown, `rank` is no rank, or a chunk would be empty.
    """
    return positions(chunks(mode, seq, rank, ranks), device or torch.device("cpu"))


def chunks(mode: str, seq: int, rank: int, ranks: int) -> Chunks:
    """As `held`, as ranges."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown; use one of {MODES}")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank} is no rank of {ranks}; use 0 to {ranks - 1}")
    count = 2 * ranks if mode == "zigzag" else ranks
    if seq < count:
        each = "two chunks of a sequence" if mode == "zigzag" else "a chunk of a sequence"
        fewer = seq // 2 if mode == "zigzag" else seq
        instead = f", or at most {fewer} ranks" if fewer else ""
        raise ValueError(
            f"seq={seq} is too short for {ranks} ranks, of which mode={mode!r} gives each {each}; "
            f"use at least {count} tokens{instead}"
        )
    # The rest goes to the first chunks, one token each, so that no two differ by more.
    short, longer = divmod(seq, count)
    starts = [number * short + min(number, longer) for number in range(count + 1)]
    # The chunk from the front comes first, so positions rise.
    mine = (rank, count - 1 - rank) if mode == "zigzag" else (rank,)
    return tuple(range(starts[number], starts[number + 1]) for number in mine)


def length(chunks: Chunks) -> int:
    """How many tokens these are."""
    return sum(map(len, chunks))


def positions(chunks: Chunks, device: torch.device) -> Int[Tensor, " held"]:
    """The positions one by one."""
    return torch.cat([torch.arange(chunk.start, chunk.stop, device=device) for chunk in chunks])


class Block(NamedTuple):
    """Queries and keys, of those at hand, that meet in one call of a kernel."""

    queries: slice
    keys: slice
    causal: bool  # these are the same tokens, and each sees itself and the earlier ones; else each query sees all keys


def visible(queries: Sequence[range], keys: Sequence[range], causal: bool) -> list[Block]:
    """What a mask leaves to be computed of some queries and some keys; blocks of which nothing is left are left out.

    Each chunk of queries is one of `keys`, or has no token in common with them.
    """
    every = Block(slice(0, sum(map(len, queries))), slice(0, sum(map(len, keys))), False)
    if not causal:
        return [every]
    if tuple(queries) == tuple(keys):
        return [every._replace(causal=True)]  # positions rise, so that the usual triangle is right over several chunks
    blocks: list[Block] = []
    start = 0
    for chunk in queries:
        stop = start + len(chunk)
        # Chunks of two ranks have no token in common, so their starts tell which is earlier.
        seen = slice(0, sum(len(each) for each in keys if each.start < chunk.start))
        if blocks and blocks[-1].keys == seen:  # neighbors that see the same: one call for both
            blocks[-1] = blocks[-1]._replace(queries=slice(blocks[-1].queries.start, stop))
        elif seen.stop:
            blocks.append(Block(slice(start, stop), seen, False))
        start = stop
    return blocks
