"""The ground under every chapter: ranks, groups, messages, three instruments, claims, and the demo runner."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.runtime.claims import Claim
    from minitrain.runtime.demo import run
    from minitrain.runtime.ledger import Ledger
    from minitrain.runtime.memory import Peak, SavedActivations, model_states
    from minitrain.runtime.mesh import axes
    from minitrain.runtime.messages import Handle, exchange, receive, send
    from minitrain.runtime.ranks import Ranks
    from minitrain.runtime.timeline import Timeline, VirtualClock
    from minitrain.runtime.world import World

_HOME = {
    "axes": "mesh",
    "Claim": "claims",
    "run": "demo",
    "Ledger": "ledger",
    "Peak": "memory",
    "SavedActivations": "memory",
    "model_states": "memory",
    "Handle": "messages",
    "exchange": "messages",
    "receive": "messages",
    "send": "messages",
    "Ranks": "ranks",
    "Timeline": "timeline",
    "VirtualClock": "timeline",
    "World": "world",
}
__all__ = [
    "Claim",
    "Handle",
    "Ledger",
    "Peak",
    "Ranks",
    "SavedActivations",
    "Timeline",
    "VirtualClock",
    "World",
    "axes",
    "exchange",
    "model_states",
    "receive",
    "run",
    "send",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.runtime` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
