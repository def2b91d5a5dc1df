"""What the tests draw, by the files that they test: the same in every run of one tree, another after each change."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("minitrain", "tests", "tutorials", "docs")
KINDS = (".py", ".ipynb", ".md", ".js", ".json")


@cache
def tree() -> str:
    """The hash of all files that decide what a test finds."""
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in KINDS)
    digest = hashlib.sha256()
    for path in files:
        if ".ipynb_checkpoints" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def drawn(things: Sequence, count: int, what: str) -> list:
    """Some of these things, in their own order.

    Args:
        things: To draw from; what they are must not depend on the machine.
        count: How many; all where there are not more.
        what: Tells this draw from others of the same tree.
    """
    places = random.Random(f"{what} {tree()}").sample(range(len(things)), min(count, len(things)))
    return [things[place] for place in sorted(places)]


def first(cases: Iterable, count: int = 1) -> list:
    """Cases of a test, of which `make test` takes the first; the others are for `make everything`."""
    slow = pytest.mark.slow("another case of the same")
    return [case if place < count else marked(case, slow) for place, case in enumerate(cases)]


def part(cases: Sequence, count: int, what: str) -> list:
    """All cases of a test, of which `make everything` takes as many as `count`, drawn; by name others are run, too."""
    chosen = drawn(range(len(cases)), count, what)
    left = pytest.mark.undrawn(what)
    return [case if place in chosen else marked(case, left) for place, case in enumerate(cases)]


def marked(case: Any, mark: pytest.MarkDecorator) -> Any:
    """A case of a test with one mark more."""
    if hasattr(case, "marks"):
        return case._replace(marks=[*case.marks, mark])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
