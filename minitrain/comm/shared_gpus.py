"""Messages of GPU tensors that gloo carries, as where ranks share a GPU: they go through the CPU's memory.

`World.start` puts these functions in the place of torch's own where ranks have GPUs. What NCCL carries is torch's.
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


def by_cpu(tensor: Tensor, group: dist.ProcessGroup | None) -> bool:
    """Whether gloo is to carry a GPU's tensor."""
    return tensor.is_cuda and dist.get_backend(group) == "gloo"


@wraps(distributed_c10d.isend)
def isend(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> Any:
    leaving = tensor.cpu() if by_cpu(tensor, group) else tensor
    return distributed_c10d.isend(leaving, dst, group, tag, group_dst)


@wraps(distributed_c10d.irecv)
def irecv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> Any:
    if not by_cpu(tensor, group):
        return distributed_c10d.irecv(tensor, src, group, tag, group_src)
    arrived = torch.empty_like(tensor, device="cpu")
    return Copied(distributed_c10d.irecv(arrived, src, group, tag, group_src), arrived, tensor)


@wraps(distributed_c10d.batch_isend_irecv)
def batch_isend_irecv(p2p_op_list: Sequence[Any]) -> list[Any]:
    if not any(by_cpu(message.tensor, message.group) for message in p2p_op_list):
        return distributed_c10d.batch_isend_irecv(list(p2p_op_list))
    works = []
    for message in p2p_op_list:
        if message.op is distributed_c10d.isend:
            works.append(isend(message.tensor, None, message.group, message.tag, message.group_peer))
        else:
            works.append(irecv(message.tensor, None, message.group, message.tag, message.group_peer))
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
