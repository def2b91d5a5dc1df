"""What all tests share: ranks that are kept alive, so that a test on four ranks costs milliseconds."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import hypothesis
import pytest
import torch

from minitrain.comm import World
from minitrain.comm.control import leave_all
from minitrain.ranks import Ranks, forkserver

LONGEST = ("tests/site/test_browser.py", "tests/site/test_built.py", "tests/test_demos.py")
DEMO_RANKS = (1, 3, 4)  # on which every demo must hold; the tour does the same on any number


# In hooks, and not on import: some ranks import this file with their tests.
def pytest_sessionstart() -> None:
    """What holds for this process alone."""
    forkserver.PRELOAD.append("tests.preload")
    torch.set_num_threads(1)  # the ranks need the cores; threads that wait for one spin
    # Time depends on what else runs: how long an example takes, and how long it takes to draw some.
    slow = [hypothesis.HealthCheck.too_slow]
    hypothesis.settings.register_profile("shared cores", deadline=None, suppress_health_check=slow)
    hypothesis.settings.load_profile("shared cores")
    gc.disable()  # while modules are imported, of which nothing is garbage


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first, so that the two workers of `make test` end together."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


def pytest_collection_finish() -> None:
    """Let the garbage collector, and the one that pytest runs at the end, pass over what has been imported."""
    gc.freeze()
    gc.enable()


class Pools(dict[int, Ranks]):
    """Ranks by their number, started when they are first asked for."""

    def __call__(self, size: int) -> Ranks:
        """`ranks(4).run(function, *args)` calls `function(world, *args)` on four ranks and returns their results."""
        if size not in self:
            self[size] = Ranks(size, device="cpu")
        return self[size]


@pytest.fixture(scope="session")
def pools() -> Iterator[Pools]:
    """All ranks of the session."""
    pools = Pools()
    yield pools
    for started in pools.values():
        started.close()


@pytest.fixture(scope="session")
def ranks(pools: Pools) -> Pools:
    """`ranks(4)` are four ranks; see `Pools`."""
    return pools


@pytest.fixture(scope="module", autouse=True)
def groups_end_with_their_file(pools: Pools) -> Iterator[None]:
    """Each group of gloo has threads that wake a hundred times a second, and a session makes thousands of groups."""
    yield
    for started in pools.values():
        started.run(leave_groups)


def leave_groups(world: World) -> None:
    """Destroy what groups of ranks a file of tests has made."""
    leave_all()
    gc.collect()  # a model whose hooks know it is garbage only then, and holds its groups till then
