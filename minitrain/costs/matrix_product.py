"""Bytes that a rank holds and sends in one Y = XW, X of rows × inner and W of inner × columns, split over n ranks.

By data, ∂W (inner × columns) is summed; by columns of W, ∂X (rows × inner); by rows of W, Y (rows × columns). Every
rank sends its partial sum to every other rank. `item`: bytes of an element.
"""

from __future__ import annotations

from typing import NamedTuple


class SplitCost(NamedTuple):
    """What one rank holds and sends: bytes of its parts of X and W, bytes sent in either pass, and messages of both."""

    held: int
    forward: int
    backward: int
    messages: int


def share(size: int, ranks: int, rank: int) -> int:
    """What `rank` gets of a dim of `size`, as `tensor_split` cuts: the first `size mod ranks` ranks get one more."""
    return size // ranks + (1 if rank < size % ranks else 0)


def to_everyone_bytes(elements: int, ranks: int, item: int = 4) -> int:
    """Bytes that a rank sends when it sends its tensor of `elements` to every other rank, (n−1)·S."""
    return (ranks - 1) * elements * item


def by_data(rows: int, inner: int, columns: int, ranks: int, rank: int, item: int = 4) -> SplitCost:
    """X by rows, W whole on every rank: ∂W is summed in backward (Li et al. 2020, "PyTorch Distributed", §2.2)."""
    held = item * (share(rows, ranks, rank) * inner + inner * columns)
    return SplitCost(held, 0, to_everyone_bytes(inner * columns, ranks, item), ranks - 1)


def by_columns(rows: int, inner: int, columns: int, ranks: int, rank: int, item: int = 4) -> SplitCost:
    """W by columns, X whole on every rank: ∂X is summed in backward (Shoeybi et al. 2019, "Megatron-LM", §3)."""
    held = item * (rows * inner + inner * share(columns, ranks, rank))
    return SplitCost(held, 0, to_everyone_bytes(rows * inner, ranks, item), ranks - 1)


def by_rows(rows: int, inner: int, columns: int, ranks: int, rank: int, item: int = 4) -> SplitCost:
    """W by rows and X by columns: Y is summed in forward (Shoeybi et al. 2019, "Megatron-LM", §3)."""
    mine = share(inner, ranks, rank)
    held = item * (rows * mine + mine * columns)
    return SplitCost(held, to_everyone_bytes(rows * columns, ranks, item), 0, ranks - 1)
