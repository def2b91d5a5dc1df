"""Bytes of encoded activations, against the paper's figures and against torch's own tensors."""

from __future__ import annotations

import pytest

from minitrain.costs import gist


def test_break_even_is_the_papers():
    """Jain et al. 2018: 50 % with indices of 4 bytes, 20 % with 1."""
    assert (gist.break_even(4), gist.break_even(1)) == (0.5, 0.2)


@pytest.mark.parametrize(("bits", "expected"), ((16, 24), (10, 16), (8, 12)))
def test_twelve_values(bits, expected):
    assert gist.stash_bytes(12, bits) == expected


def test_a_last_byte_or_word_counts_whole():
    assert (gist.sign_bytes(9), gist.argmax_bytes(3), gist.stash_bytes(4, 10)) == (2, 2, 8)
