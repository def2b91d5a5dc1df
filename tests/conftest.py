"""What all tests share: ranks that are kept alive, so that a test on four ranks costs milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from minitrain.runtime import Ranks
from tests.shapes import check_shapes

torch.set_num_threads(1)  # the ranks need the cores; threads that wait for one spin

DEMO_RANKS = (1, 3, 4)  # on which every demo must hold; the tour does the same on any number


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Ranks]]:
    """`ranks(4).run(function, *args)` calls `function(world, *args)` on four ranks and returns their results."""
    pools: dict[int, Ranks] = {}

    def pool(size: int) -> Ranks:
        if size not in pools:
            pools[size] = Ranks(size, device="cpu", setup=check_shapes)
        return pools[size]

    yield pool
    for started in pools.values():
        started.close()
