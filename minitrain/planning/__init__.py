"""Chapter 14, planning: what a layout of ranks will hold, send and wait for, before a single rank is started."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.planning.plan import predict

_HOME = {
    "predict": "plan",
}
__all__ = ["predict"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.planning` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
