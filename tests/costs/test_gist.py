"""Bytes of encoded activations, against the paper's figures and against torch's own tensors."""

from __future__ import annotations

import pytest
import torch

from minitrain.costs import gist


def test_break_even_is_the_papers():
    """Jain et al. 2018: 50 % with indices of 4 bytes, 20 % with 1."""
    assert (gist.break_even(4), gist.break_even(1)) == (0.5, 0.2)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_bytes_are_those_of_torchs_compressed_rows():
    dense = torch.randn(5, 256, generator=torch.Generator().manual_seed(0)).relu()
    sparse = dense.to_sparse_csr()
    parts = (sparse.values().nbytes, sparse.col_indices().int().nbytes, sparse.crow_indices().int().nbytes)
    assert gist.sparse_bytes(5, int(dense.count_nonzero()), index=4) == sum(parts)


@pytest.mark.parametrize(("bits", "expected"), ((16, 24), (10, 16), (8, 12)))
def test_twelve_values(bits, expected):
    assert gist.stash_bytes(12, bits) == expected


def test_a_last_byte_or_word_counts_whole():
    assert (gist.sign_bytes(9), gist.argmax_bytes(3), gist.stash_bytes(4, 10)) == (2, 2, 8)


def test_another_width_is_refused():
    with pytest.raises(ValueError, match=r"bits=12 must be one of 16, 10, 8"):
        gist.stash_bytes(12, 12)


@pytest.mark.parametrize(("bits", "dtype"), ((16, torch.float16), (8, torch.float8_e4m3fn)))
def test_rounding_is_half_of_torchs_eps(bits, dtype):
    assert gist.rounding(bits) == torch.finfo(dtype).eps / 2
