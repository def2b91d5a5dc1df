"""The reference: one GPT for one device, which the chapters cut, shard and replicate."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.models.config import GPTConfig
    from minitrain.models.gpt import GPT

_HOME = {"GPT": "gpt", "GPTConfig": "config"}
__all__ = ["GPT", "GPTConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
