"""The order without a list, and mixtures."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.data.mixture import Mixture
from minitrain.data.order import key_of, shuffled
from minitrain.data.shares import BLOCK, parse
from minitrain.data.text import Samples

KEYS = st.integers(0, 2**64 - 1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 700), KEYS)
def test_each_place_gets_another_number(count: int, key: int):
    assert sorted(shuffled(place, count, key) for place in range(count)) == list(range(count))


def test_places_and_keys_are_independent():
    """χ² of which tenth a place lands in, over keys, and of the distance between neighbors: as drawn numbers have."""
    for numbers in (
        [shuffled(7, 1000, key_of(seed, "test")) // 100 for seed in range(2000)],
        [(shuffled(i, 1000, 3) - shuffled(i + 1, 1000, 3)) % 1000 // 100 for i in range(999)],
    ):
        expected = len(numbers) / 10
        squares = sum((Counter(numbers)[tenth] - expected) ** 2 / expected for tenth in range(10))
        assert squares < 9 + 5 * math.sqrt(2 * 9), numbers  # mean and deviation of χ² with 9 degrees of freedom


def sources(count: int) -> list[Samples]:
    """Texts of one byte each, so that a sample tells its source."""
    return [Samples(torch.full((5000,), source, dtype=torch.uint8), 4) for source in range(count)]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 2**31), st.integers(0, 3000))
def test_every_source_gives_each_of_its_samples_once_and_its_share_of_a_block(
    parts: list[int], seed: int, position: int
):
    parts[-1] += BLOCK - sum(parts)  # at most 300 so far
    mixture = Mixture(sources(len(parts)), [float(Fraction(part, BLOCK)) for part in parts], seed)
    places = [mixture.place(sample) for sample in range(2 * BLOCK)]
    for source, part in enumerate(parts):
        assert [number for found, number in places if found == source] == list(range(2 * part))
    counted = Counter(mixture.place(sample)[0] for sample in range(position))
    assert mixture.cursors(position) == [counted[source] for source in range(len(parts))]


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        (
            ["code:0.3:src"],
            r"mix='code:0.3:src' is no name=weight:data with a weight in \(0, 1\], such as code=0.3:src",
        ),
        (["code=0:src"], "is no name=weight:data"),
        (["code=0.3333:src"], "has a weight of more than three decimals; round it"),
        (["a=0.5:x", "a=0.5:y"], "mix names 'a' twice; give each source a name of its own"),
        (["code=0.3:src", "math=0.1:m"], "mix has weights that sum to 0.4, not 1; change code, math"),
    ],
)
def test_a_mixture_that_cannot_be(mix: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        parse(mix)
