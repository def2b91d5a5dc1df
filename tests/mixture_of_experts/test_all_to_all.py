"""All-to-all of rows with gaps, and lengths that do not fit; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch

from minitrain.collectives.all_to_all import pairwise
from minitrain.comm import Ledger
from minitrain.mixture_of_experts.all_to_all import all_to_all


def rows_with_gaps(world):
    x = torch.arange(12.0).view(2, 6).t()[: 2 * world.size]  # a transposed matrix: rows are not contiguous
    y = all_to_all(x, [2] * world.size, [2] * world.size, carrier=pairwise)
    assert torch.equal(y, x[2 * world.rank : 2 * world.rank + 2].repeat(world.size, 1))


def bad_lengths_are_refused_before_anything_is_sent(world):
    x = torch.ones(3, 2)
    with Ledger() as ledger:
        with pytest.raises(ValueError, match=r"sends=\[1, 1\] sums to 2, but x has 3 rows"):
            all_to_all(x, [1, 1], [1, 1])
        with pytest.raises(ValueError, match=r"receives=\[1\] needs a number of rows for each of 2 ranks"):
            all_to_all(x, [1, 2], [1])
        with pytest.raises(ValueError, match=r"sends=\[4, -1\] needs"):
            all_to_all(x, [4, -1], [1, 1])
    assert not ledger.entries


@pytest.mark.parametrize("case", (rows_with_gaps, bad_lengths_are_refused_before_anything_is_sent))
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
