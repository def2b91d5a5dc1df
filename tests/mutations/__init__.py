"""Mistakes of one line, each with the claim that must turn false by it: do the claims bite?

`make mutations` tries them all, on four ranks; `tests/test_mutations.py` draws ten. A mutation changes a function in
the ranks' memory, so that no file is touched and a demo costs no more than its run.
"""

from __future__ import annotations

import functools
import gc
import inspect
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jaxtyping

from minitrain.comm import World
from minitrain.data.text import Text
from minitrain.lessons.claims import Claim, Row
from minitrain.lessons.demo import demo_of, play
from minitrain.lessons.listing import CHAPTERS

TOUR = "minitrain.tour"


@dataclass(frozen=True)
class Mutation:
    """A mistake that somebody could make, in practice or in theory.

    Attributes:
        symbol: The function or method: "minitrain.collectives.ring.all_reduce".
        old: Text that occurs in it exactly once.
        new: What replaces it.
        demo: The technique whose demo is run: "minitrain.collectives.ring".
        claims: How each claim that must turn false begins; none if a test finds the mistake instead.
        test: The test that fails, where no claim does: "tests/collectives/test_ring.py::test_…".
    """

    symbol: str
    old: str
    new: str
    demo: str = ""
    claims: tuple[str, ...] = ()
    test: str = ""


def by_claim(demo: str, *claims: str) -> dict[str, Any]:
    """The heading of mistakes that these claims of a demo find."""
    return {"demo": f"minitrain.{demo}", "claims": claims}


def by_test(test: str) -> dict[str, Any]:
    """The heading of mistakes that a test finds, as no claim can tell."""
    return {"test": test}


def table(*lines: dict[str, Any] | tuple[str, str, str]) -> list[Mutation]:
    """The mistakes `(symbol without "minitrain.", old, new)`, below the heading that says what finds them."""
    mutations: list[Mutation] = []
    heading: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, dict):
            heading = line
        else:
            symbol, old, new = line
            mutations.append(Mutation(f"minitrain.{symbol}", old, new, **heading))
    return mutations


def all_mutations() -> list[Mutation]:
    """Those of all chapters, and those of what all chapters use."""
    names = (*CHAPTERS, "tour", "instruments", "ground", "texts")
    files = [each for each in names if (Path(__file__).parent / f"{each}.py").exists()]
    return [mutation for file in files for mutation in import_module(f"tests.mutations.{file}").MUTATIONS]


def meant_by(name: str, claims: Sequence[str]) -> list[str]:
    """The claims of a demo that a mutation means by this name: the one that is called so, or all that begin so."""
    return [name] if name in claims else [claim for claim in claims if claim.startswith(name)]


def rows_with(world: World, mutation: Mutation) -> list[Row]:
    """Run the mutation's demo with the mistake in it, on this rank; all ranks call it."""
    jaxtyping.config.update("jaxtyping_disable", True)  # the demo's own checks are under test, not those of shapes
    try:
        with mutated(mutation):
            return play(world, own_demo_of_the_tour if mutation.demo == TOUR else demo_of(mutation.demo), {})[0]
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def own_demo_of_the_tour(world: World) -> list[Claim]:
    """What the tour claims besides the demos."""
    from minitrain.lessons import tour  # here, as it imports the whole package

    return tour.train(world, Text.load("reference"))[2]


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Let a function make the mistake within the block.

    Raises:
        ValueError: There is no such function, or `old` does not occur in it exactly once.
    """
    module, function = find(mutation.symbol)
    right = function.__code__
    function.__code__ = changed(module, right, mutation)
    forget()
    try:
        yield
    finally:
        function.__code__ = right
        forget()


def find(symbol: str) -> tuple[ModuleType, FunctionType]:
    """A function or method by its full name, without what decorates it."""
    names = symbol.split(".")
    for count in range(len(names) - 1, 0, -1):
        try:
            module = import_module(".".join(names[:count]))
            break
        except ModuleNotFoundError:
            continue
    else:
        raise ValueError(f"symbol={symbol!r}: no such module")
    found: Any = module
    for name in names[count:]:
        found = inspect.getattr_static(found, name, None)
    found = getattr(found, "fget", None) or getattr(found, "func", None) or found
    found = getattr(found, "__func__", found)  # of a class or static method
    found = inspect.unwrap(found) if callable(found) else found
    if not isinstance(found, FunctionType):
        raise ValueError(f"symbol={symbol!r} is no function or method")
    return sys.modules[found.__module__], found


def changed(module: ModuleType, right: CodeType, mutation: Mutation) -> CodeType:
    """The function's code with the mistake: its module is compiled anew, and its own code taken out of that."""
    lines = linecache.getlines(right.co_filename)
    first = right.co_firstlineno - 1
    block = inspect.getblock(lines[first:])
    text = "".join(block)
    if text.count(mutation.old) != 1:
        raise ValueError(f"{mutation.symbol}: old={mutation.old!r} stands there {text.count(mutation.old)} times")
    source = "".join(lines[:first]) + text.replace(mutation.old, mutation.new) + "".join(lines[first + len(block) :])
    for code in codes(compile(source, right.co_filename, "exec", dont_inherit=True)):
        if (code.co_qualname, code.co_firstlineno) == (right.co_qualname, right.co_firstlineno):
            return code
    raise ValueError(f"{mutation.symbol}: it is gone with new={mutation.new!r}")


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def forget() -> None:
    """Empty the caches of our functions: they may hold what the right or the wrong code gave."""
    gc.unfreeze()  # what was frozen before the ranks were forked is among no objects that gc lists
    for cached in gc.get_objects():
        if type(cached) is functools._lru_cache_wrapper and cached.__module__.startswith("minitrain"):
            cached.cache_clear()
