"""Chapter 01, collectives: how ranks add, share and spread tensors, built from point-to-point messages.

Every file has the same verbs, `all_reduce`, `reduce_scatter`, `all_gather` and `broadcast`, so that two of them can be
put side by side: `naive`, `ring`, `tree` (with `halving`), `hierarchical`, and `native`, which is torch's own.
`all_to_all` is what later chapters send rows with.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["halving", "hierarchical", "naive", "native", "ring", "tree"]


def __getattr__(name: str) -> Any:
    """Import a file of this chapter when it is first used, so that `import minitrain.collectives` needs no torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
