"""The text the models learn from, as bytes, and the order in which its samples are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.data.text import Samples, Text, bigram_entropy, share, windows

__all__ = ["Samples", "Text", "bigram_entropy", "share", "windows"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from minitrain.data import text

        return getattr(text, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
