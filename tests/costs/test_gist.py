"""Bytes of encoded activations, against the paper's figures and against torch's own tensors."""

from __future__ import annotations

from minitrain.costs import gist


def test_break_even_is_the_papers():
    """Jain et al. 2018: 50 % with indices of 4 bytes, 20 % with 1."""
    assert (gist.break_even(4), gist.break_even(1)) == (0.5, 0.2)
