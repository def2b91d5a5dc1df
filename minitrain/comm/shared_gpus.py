"""Messages of ranks that share a GPU: gloo carries them, between CPUs, so they go through the CPU's memory.

`World.start` puts these functions in the place of torch's own where ranks share GPUs, and only there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from minitrain.watch.calls import Message


def carry_by_cpu() -> None:
    """From now on, copy a GPU tensor to the CPU before it leaves, and what has arrived to the GPU in `wait()`."""
    for verb in (isend, irecv, batch_isend_irecv):
        setattr(dist, verb.__name__, verb)
    dist.P2POp = Message


@wraps(distributed_c10d.isend)
def isend(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    return distributed_c10d.isend(tensor.cpu(), *args, **kwargs)


@wraps(distributed_c10d.irecv)
def irecv(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    if not tensor.is_cuda:
        return distributed_c10d.irecv(tensor, *args, **kwargs)
    arrived = torch.empty_like(tensor, device="cpu")
    return Copied(distributed_c10d.irecv(arrived, *args, **kwargs), arrived, tensor)


@wraps(distributed_c10d.batch_isend_irecv)
def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Any]:
    works = []
    for message in p2p_op_list:
        where = {"group": message.group, "tag": message.tag}
        if message.op is distributed_c10d.isend:
            works.append(isend(message.tensor, group_dst=message.group_peer, **where))
        else:
            works.append(irecv(message.tensor, group_src=message.group_peer, **where))
    return works


class Copied:
    """torch's handle of a receive whose tensor is copied to the GPU when it has arrived."""

    def __init__(self, work: Any, arrived: Tensor, into: Tensor):
        self._work, self._arrived, self._into = work, arrived, into

    def wait(self, *timeout: Any) -> bool:
        done = self._work.wait(*timeout)
        self._into.copy_(self._arrived)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
