"""Which server keeps which tensor: the largest first, each to the server with the least.

Tensors stay whole. So a server can run any optimizer, even one that looks at a whole matrix, and its messages need no
description. The price is that servers are not equally full: one tensor that is larger than its share, such as an
embedding, fills a server alone. Li et al. 2014, §3.2 and §4.3, cut into ranges of keys instead, and so does MXNet.

Source: Graham 1969, "Bounds on multiprocessing timing anomalies", theorem 2 (longest processing time first). With k
servers the fullest has at most 4/3 − 1/(3k) times what the fullest has in the best placement of all.
"""

from __future__ import annotations

from collections.abc import Sequence


def place(sizes: Sequence[int], servers: int) -> list[int]:
    """The number of the server, from 0, that keeps each tensor of so many bytes: largest first, to the emptiest.

    Raises:
        ValueError: There is no server, or a size is negative.
    """
    if servers < 1:
        raise ValueError(f"servers={servers} must be at least 1, to keep the parameters")
    if any(size < 0 for size in sizes):
        raise ValueError(f"sizes={list(sizes)} must not be negative")
    owners, loads = [0] * len(sizes), [0] * servers
    for tensor in sorted(range(len(sizes)), key=lambda i: -sizes[i]):  # stable: equal ones in their order
        # The first among equals on every rank, so that no rank need be told.
        emptiest = loads.index(min(loads))
        owners[tensor] = emptiest
        loads[emptiest] += sizes[tensor]
    return owners
