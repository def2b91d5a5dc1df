"""What every chapter reads: the world, meshes, messages and handles; and what measures them.

`messages` is the first file to read. `ledger`, `memory` and `timeline` measure; `control` is the side channel over
which ranks compare what they are about to send. The instruments that watch from outside are in `minitrain.watch`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

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
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
