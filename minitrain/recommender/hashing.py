"""Hashing of ids: which server keeps a row, and its value before its first gradient.

**Idea.** Ids are 64-bit keys with gaps, such as hashes of words or numbers of customers. They are not known in advance,
so no list can say which server keeps which id. A hash decides instead, and every rank can compute it. A hash also gives
the initial numbers of a row, so that the row is the same on any rank and at any time.

**Source.** Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators" (SplitMix64, whose mixing has the
constants of Stafford's variant 13); Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".
**Cost.** Two multiplications and a few shifts per id; in `start`, per element.
Unlike feature hashing, which keeps no key, ids never collide, since `mix` is a bijection and the key is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # 2⁶⁴ / golden ratio, as a signed number
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def mix(ids: Int64[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
    """A bijection of 64-bit numbers after which neighbors have nothing in common; products wrap around.

    It is the number that SplitMix64 draws first from the seed `ids` (Steele, Lea & Flood 2014).
    """
    z = ids + GOLDEN  # otherwise 0 would stay 0
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """z as an unsigned number, shifted right: torch's shift would draw copies of the sign in from the left."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def owner(ids: Int64[Tensor, "*shape"], servers: int) -> Int64[Tensor, "*shape"]:
    """Which of `servers` keeps the row of an id, from 0.

    Ids with a pattern (all even, say) also spread evenly, which the ids' own remainders would not do.
    """
    if servers < 1:
        raise ValueError(f"servers={servers}: the rows need a server; use at least 1")
    return mix(ids) % servers  # torch's remainder has the sign of the divisor: never negative


def start(ids: Int64[Tensor, " ids"], seed: int, dimension: int, scale: float) -> Float32[Tensor, "ids {dimension}"]:
    """The rows of `ids` before any gradient: uniform between −scale and scale, the same bits on every device.

    Source: Salmon et al. 2011: element j of a row is a hash of (seed, id, j), so that no order of drawing matters.
    """
    key = mix(ids ^ mix(torch.tensor(seed, device=ids.device)))
    bits = mix(key[:, None] + torch.arange(dimension, device=ids.device))  # (ids, dimension)
    # 24 bits fit into a float32, so everything up to the last product is exact.
    fraction = _shifted(bits, 40).to(torch.float32) * 2.0**-23 - 1
    return fraction * scale


def as_ids(name: str, ids: Tensor | Sequence[Any]) -> Int64[Tensor, "*shape"]:
    """`ids`, a tensor of any shape or a list, as a tensor of 64-bit keys.

    Raises:
        ValueError: They, whom it calls `name`, are no integers, or do not fit into 64 bits with a sign.
    """
    if not isinstance(ids, Tensor):
        listed = list(ids)
        wrong = [each for each in listed if not isinstance(each, int) or isinstance(each, bool)]
        if wrong:
            raise ValueError(f"{name}: {wrong[0]!r} is no id; use integers")
        wide = [each for each in listed if not -(2**63) <= each < 2**63]
        if wide:
            raise ValueError(f"{name}: id {wide[0]} has more than 64 bits; use −2⁶³ to 2⁶³−1, or a hash of it")
        return torch.tensor(listed, dtype=torch.int64)
    if ids.dtype == torch.uint64:
        return ids.view(torch.int64)  # the same 64 bits, and so the same key
    if ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise ValueError(
            f"{name}: ids are {ids.dtype}, which does not hold each 64-bit key; use torch.int64 from the start"
        )
    return ids.to(torch.int64)


def as_columns(ids: Mapping[str, Any], tables: Collection[str], pending: bool) -> tuple[list[Tensor], str]:
    """The ids of each table as 64-bit keys; and the error in a lookup of them, empty if there is none.

    `pending`: the last lookup's gradients have not been pushed.
    """
    if pending:
        return [], "lookup() came twice without a push() between; push(), or look up under torch.no_grad()"
    if set(ids) != set(tables):
        return [], f"ids={sorted(ids)} must name each of the tables {sorted(tables)}, also where it has none"
    try:
        return [as_ids(f"ids[{name!r}]", ids[name]) for name in tables], ""
    except ValueError as error:
        return [], str(error)
