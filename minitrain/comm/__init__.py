"""What every chapter reads: the world, meshes, messages and handles; and what measures them.

`messages` is the first file to read. `ledger`, `memory` and `timeline` measure; `control` is the side channel over
which ranks compare what they are about to send. The instruments that watch from outside are in `minitrain.watch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.comm.ledger import Ledger
    from minitrain.comm.memory import Peak, SavedActivations, model_states
    from minitrain.comm.mesh import axes
    from minitrain.comm.messages import Handle, exchange, receive, send
    from minitrain.comm.timeline import Timeline, VirtualClock
    from minitrain.comm.world import World

_HOME = {
    "Handle": "messages",
    "Ledger": "ledger",
    "Peak": "memory",
    "SavedActivations": "memory",
    "Timeline": "timeline",
    "VirtualClock": "timeline",
    "World": "world",
    "axes": "mesh",
    "exchange": "messages",
    "model_states": "memory",
    "receive": "messages",
    "send": "messages",
}
__all__ = [
    "Handle",
    "Ledger",
    "Peak",
    "SavedActivations",
    "Timeline",
    "VirtualClock",
    "World",
    "axes",
    "exchange",
    "model_states",
    "receive",
    "send",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.comm` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
