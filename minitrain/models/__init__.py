"""The reference: one GPT for one device, which the chapters cut, shard and replicate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.models.gpt import GPT, GPTConfig

__all__ = ["GPT", "GPTConfig"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from minitrain.models import gpt

        return getattr(gpt, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
