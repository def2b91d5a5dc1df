"""Ulysses and the gather of keys and values, against figures of the papers and sums worked out by hand."""

from __future__ import annotations

import math
from fractions import Fraction

from minitrain.costs import context_parallel as costs

# Grattafiori et al. 2024, tables 3 and 4: Llama 3 405B, 131,072 tokens on 16 context-parallel ranks.
LLAMA = costs.Attention(heads=128, key_heads=8, seq=131_072, head=128)


def test_by_hand():
    # Two sequences of 6 tokens, 3 heads of 5 elements, 1 key head, 3 ranks, 4 bytes. Each rank has 2 tokens of each
    # sequence and sends to two others. To each, of Q, 2 · 2 tokens · 1 head · 5 elements, and as much of K and V, whose
    # head is repeated three times, and of the output.
    one = costs.Attention(heads=3, key_heads=1, seq=6, head=5, batch=2, item=4)
    assert costs.ulysses(one, 3) == (2 * 4 * (2 * 2 * 1 * 5) * 4, 2 * 4)
    # The gather: its 2 · 2 tokens of one head of K, and the next rank's, and the same of V.
    assert costs.gather(one, 3) == (2 * (2 * (2 * 2 * 5)) * 4, 4)
    assert costs.gathered(one) == 2 * (2 * 6 * 5) * 4
    # A ring: K and V over two hops, twice, and their gradients over three; each hop 2 · 2 tokens of one head, twice.
    assert costs.ring_step(one, 3) == (2 * 2 + 3) * (2 * (2 * 2 * 5)) * 4


def test_the_volume_of_the_papers():
    # Jacobs et al. 2023, §3.2: 4Nh/P for P ranks, in elements, where (P−1)/P is taken as 1.
    for ranks in (8, 64):
        sizes = costs.Attention(heads=64, key_heads=64, seq=2**20, head=128, item=1)
        exact = Fraction(costs.ulysses(sizes, ranks).bytes)
        assert exact / Fraction(ranks - 1, ranks) == Fraction(4 * 2**20 * 64 * 128, ranks)
    # Grattafiori et al. 2024, §3.3.2: K and V are "much smaller" than Q, here 1/16 of it, 256 MiB of 4 GiB per layer.
    assert LLAMA.bytes(LLAMA.heads) == 2**32
    assert costs.gathered(LLAMA) == 2 * 2**28


def test_the_crossing_by_hand():
    # Llama 3 405B: of 8 key heads and n = 16 ranks, Ulysses sends 2·(128 + 16)/16 = 18 heads, the gather 2·8 = 16, each
    # times (n−1)/n; with 32 ranks 2·(128 + 32)/32 = 10. They are equal at 128/7 ranks.
    assert costs.gather_over_ulysses(128, 8, 16) == 16 / 18
    assert costs.gather_over_ulysses(128, 8, 32) == 16 / 10
    assert costs.crossing(128, 8) == 128 / 7
    assert costs.least(LLAMA, 16) == "gather" and costs.least(LLAMA, 32) == "ulysses"
    # As many key heads as heads: 2n of 4 heads' worth, equal on 2 ranks.
    assert costs.crossing(64, 64) == 2 and costs.gather_over_ulysses(64, 64, 2) == 1
    # With one key head never.
    assert costs.crossing(16, 1) == math.inf
    # Where the ranks are more than the heads, or do not divide them, Ulysses is impossible.
    assert costs.least(costs.Attention(heads=4, key_heads=4, seq=64, head=8), 8) == "gather"
