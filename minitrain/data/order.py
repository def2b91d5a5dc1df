"""A random order of any length without a list: where a number goes is computed from the number alone.

**Idea.** A list that is shuffled takes memory for each of its elements, and terabytes of text have billions of samples.
A Feistel network is a permutation that needs none: split a number's bits in two halves, and mix a function of one half
into the other, a few times. Each round can be undone, whatever the function is, so no two numbers meet. It permutes
[0, 4ᵏ) for the smallest 4ᵏ that is enough; a number that lands outside of [0, count) goes through again, until it is
inside (cycle walking: at most 4 times in the mean).

**Source.** Luby and Rackoff 1988, "How to construct pseudorandom permutations from pseudorandom functions"; Black and
Rogaway 2002, "Ciphers with arbitrary finite domains", §3, for the walk.
"""

from __future__ import annotations

import hashlib

ROUNDS = 4
_MASK = 2**64 - 1


def shuffled(place: int, count: int, key: int) -> int:
    """Where a random order of `count` numbers has put the one at `place`; each place gets another number.

    `place` is in [0, count), and `key` is the order's, 64 bits; see `key_of`.
    """
    if not 0 <= place < count:
        raise ValueError(f"place={place} is not in an order of {count}; use 0 to {count - 1}")
    half = max(1, ((count - 1).bit_length() + 1) // 2)  # bits; both halves have as many
    low = 2**half - 1
    while True:
        left, right = place >> half, place & low
        for turn in range(ROUNDS):
            left, right = right, left ^ (_mixed(right, key, turn) & low)
        place = left << half | right
        if place < count:
            return place


def _mixed(number: int, key: int, turn: int) -> int:
    """64 bits that depend on all bits of the number and the key; the finalizer of splitmix64 (Steele et al. 2014)."""
    z = (number + key + (turn + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def key_of(*parts: object) -> int:
    """A key of 64 bits from a seed and names, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")
