"""The text the models learn from, as bytes, and the order in which its samples are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.data.text import Samples, Text, bigram_entropy, share, windows

__all__ = ["Samples", "Text", "bigram_entropy", "share", "windows"]

__getattr__ = lazily(__name__, dict.fromkeys(__all__, "text"))
