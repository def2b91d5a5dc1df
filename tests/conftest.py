"""What all tests share: ranks that are kept alive, so that a test on four ranks costs milliseconds, and two rungs.

`make test` is the first rung. It leaves out what is marked `slow`, and of a test that runs on several numbers of ranks
it takes one: 3 where there is a choice, since few sizes can be divided by 3. `make everything`, which is
`pytest --everything` and more, runs all of them, but of what `part` marks (drawn.py) only what is drawn.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from minitrain.comm import World
from minitrain.comm.control import leave_all
from minitrain.ranks import Ranks, forkserver
from tests.drawn import tree
from tests.durations import Recorder

# Threads of a rank, above which its groups end with a test; each group has three.
MANY = 40
# What takes long begins first, so that the workers end together.
FIRST = (
    "tests/site/",
    "tests/test_tour.py",
    "tests/test_notebooks_run.py",
    "tests/second_device/test_demos.py",
    "tests/test_demos.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The second rung, and a part of the first."""
    parser.addoption("--everything", action="store_true", help="also what is marked slow, and on all numbers of ranks")
    parser.addoption("--chapter", help="also the demos of this chapter")


@pytest.hookimpl(tryfirst=True)  # before Hypothesis reads it
def pytest_configure(config: pytest.Config) -> None:
    """Draw the examples of property tests by the tree, so that a run can be repeated; write down durations."""
    config.option.hypothesis_seed = config.option.hypothesis_seed or int(tree()[:8], 16)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the rung and the order."""
    others, chapter = others_of_the_same(items), config.option.chapter
    left_out = set() if config.option.everything else others | {item for item in items if is_slow(item, chapter)}
    if not config.option.keyword and "::" not in "".join(config.args):  # nobody asks for one by its name
        left_out |= {item for item in items if item.get_closest_marker("undrawn") and not of_chapter(item, chapter)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
    items.sort(key=lambda item: next((i for i, file in enumerate(FIRST) if item.nodeid.startswith(file)), len(FIRST)))
    for item in items:  # with other ranks the same functions get the same kinds of arguments
        if item in others or (chapter and "module" in given(item)):
            item.fixturenames = [*item.fixturenames, "without_shapes"]  # not appended: all numbers share one list


class Together(LoadScopeScheduling):
    """What stays on one worker of `make test`: a file, the tests of the site, a single notebook."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file == "tests/test_notebooks_run.py":
            return nodeid
        return "tests/site" if file.startswith("tests/site/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Deal out the tests."""
    return Together(config, log)


def is_slow(item: pytest.Item, chapter: str | None) -> bool:
    """Whether the first rung leaves out a test; of the demos, it runs those of the chapter that was asked for."""
    return item.get_closest_marker("slow") is not None and not of_chapter(item, chapter)


def of_chapter(item: pytest.Item, chapter: str | None) -> bool:
    """Whether it tests a demo of this chapter."""
    return given(item).get("module", "").startswith(f"minitrain.{chapter}.")


def others_of_the_same(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of tests that differ in their number of ranks alone, the parameter `size`, all but one."""
    same: dict[tuple[str, str], dict[int, pytest.Item]] = {}
    for item in items:
        rest = given(item)
        if isinstance(size := rest.pop("size", None), int):
            # By its text, since some parameters cannot be hashed.
            same.setdefault((item.nodeid.partition("[")[0], repr(rest)), {})[size] = item
    others = set()
    for found in same.values():
        kept = min(found, key=lambda size: (size != 3, size == 1, size))
        others |= {item for size, item in found.items() if size != kept}
    return others


def given(item: pytest.Item) -> dict[str, Any]:
    """A test's parameters."""
    return dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def pytest_collection_finish() -> None:
    """Let the garbage collector, and the one that pytest runs at the end, pass over what has been imported."""
    gc.freeze()
    gc.enable()


class Pools(dict[int, Ranks]):
    """Ranks by their number, started when they are first asked for.

    Attributes:
        shapes: Whether the test that runs wants shapes and types checked.
    """

    def __init__(self) -> None:
        self.shapes, self._begun = True, set[int]()

    def __call__(self, size: int) -> Ranks:
        """`ranks(4).run(function, *args)` calls `function(world, *args)` on four ranks and returns their results."""
        if size not in self:
            self[size] = Ranks(size, device="cpu")
        if size not in self._begun:
            self._begun.add(size)
            self[size].run(begin, self.shapes)
        return self[size]

    def end(self) -> None:
        """A test has ended: where it has left many groups on ranks, they are destroyed."""
        for size in self._begun:
            if max(self[size].run(threads)) > MANY:
                self[size].run(leave_groups)
        self._begun.clear()


def begin(world: World, shapes: bool) -> None:
    """Each test finds the random numbers, which are the same on all ranks, where a new process has them."""
    torch.manual_seed(0)
    check_shapes(world, shapes)


def check_shapes(world: World | None, wanted: bool) -> None:
    """Check the shapes and types of arguments from now on, or let functions run as they do for a user."""
    jaxtyping.config.update("jaxtyping_disable", not wanted)


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


@pytest.fixture
def without_shapes(pools: Pools) -> Iterator[None]:
    """Shapes and types are not checked: for what calls a function very often, or is checked with other ranks."""
    pools.shapes = False
    check_shapes(None, False)
    yield
    pools.shapes = True
    check_shapes(None, True)


@pytest.fixture(autouse=True)
def tests_begin_alike(pools: Pools) -> Iterator[None]:
    """Whatever ran before on the same ranks.

    Each group of gloo has threads that wake a hundred times a second, and a session makes thousands of groups.
    """
    yield
    pools.end()


@pytest.fixture(scope="module", autouse=True)
def groups_end_with_their_file(pools: Pools) -> Iterator[None]:
    """And with them what tests of one file may share."""
    yield
    for started in pools.values():
        started.run(leave_groups)


def threads(world: World) -> int:
    """How many threads this rank has, where the system tells."""
    tasks = Path("/proc/self/task")
    return sum(1 for _ in tasks.iterdir()) if tasks.exists() else 0


def leave_groups(world: World) -> None:
    """Destroy what groups of ranks a file of tests has made."""
    leave_all()
    gc.collect()  # a model whose hooks know it is garbage only then, and holds its groups till then
