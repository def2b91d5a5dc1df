"""Public names that a package imports when they are first used, so that to import the package needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazily(package: str, home: dict[str, str]) -> Callable[[str], Any]:
    """The package's `__getattr__`: each name from the file, beneath the package, that `home` gives it.

    A file that is elsewhere begins with a dot: ".comm.mesh" is `minitrain.comm.mesh`.
    """

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home[name]}", package), name)

    return find
