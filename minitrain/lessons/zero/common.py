"""What a full form of ZeRO holds, counted: shared by lessons and notebooks."""

from __future__ import annotations

from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.zero.full.sharded import Sharded

NAMES = ("parameters", "gradients", "optimizer states")


def held(model: Sharded) -> dict[str, int]:
    """Bytes of storages that this rank holds for the model, by category, each storage once.

    Returns:
        Bytes of "parameters", "gradients", "optimizer states" (with copies in float32) and "buffers".
    """
    seen: set[int] = set()
    every = model.lines
    return {
        "parameters": storage_bytes((t for line in every for t in (line.flat, line.shard)), seen)
        + storage_bytes(model.module.parameters(), seen),
        "gradients": storage_bytes((p.grad for p in model.module.parameters()), seen)
        + storage_bytes((line.gradient for line in every), seen),
        "optimizer states": storage_bytes((line.master for line in every), seen)
        + storage_bytes(optimizer_states(model.optimizer), seen),
        "buffers": storage_bytes(model.module.buffers(), seen),
    }
