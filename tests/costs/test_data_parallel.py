"""Which parameters share a bucket, by hand."""

from __future__ import annotations

from minitrain.costs import data_parallel as costs
from minitrain.costs.data_parallel import Sizes

PARAMETERS = [Sizes(10, 4), Sizes(5, 4), Sizes(7, 2, "half"), Sizes(1, 4), Sizes(100, 4)]


def test_buckets_by_hand():
    # From the last: 100 elements fill a bucket of 64 bytes alone; then 1 + 5 + 10 elements are 64 bytes.
    assert costs.buckets(PARAMETERS, 64) == [Sizes(101, 4), Sizes(1 + 5 + 10 + 3, 4), Sizes(8, 2, "half")]
    assert costs.buckets(PARAMETERS, 0) == [
        Sizes(101, 4),
        Sizes(2, 4),
        Sizes(8, 2, "half"),
        Sizes(6, 4),
        Sizes(11, 4),
    ]
    assert costs.buckets([], 64) == []
