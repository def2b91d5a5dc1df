"""What is checked before a message starts, on every rank that is to send or receive one; it observes the messages."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from minitrain.comm.control import contiguous


def check_message(verb: str, tensor: Tensor, peer: int, group: dist.ProcessGroup | None) -> None:
    """Refuse a message to or from no other rank, and a tensor whose memory does not hold its values side by side.

    Raises:
        ValueError: Names the argument, and says what would do.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    if rank < 0:
        raise ValueError(f"{verb}: this rank ({dist.get_rank()}) is not in the group; only its members may call")
    if not 0 <= peer < size or peer == rank:
        name = "to" if verb == "send" else "source"
        raise ValueError(
            f"{verb}: {name}={peer} is no other rank of this group of {size} (this is rank {rank}); "
            f"use one of 0 to {size - 1} but {rank}"
        )
    contiguous(verb, tensor)
