"""The processes behind notebooks, tests and demos: ranks that are started once and then run whatever they are given.

Nobody needs this package to learn from the others. It starts ranks within a fraction of a second, says in which line
each of them waits, and ends them all when one fails.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.ranks.ranks import Ranks

_HOME = {
    "Ranks": "ranks",
}
__all__ = ["Ranks"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.ranks` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
