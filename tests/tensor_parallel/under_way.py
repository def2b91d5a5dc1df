"""Which matrix products are computed while a collective is under way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.collectives.full import native
from minitrain.comm.messages import Handle


class UnderWay(TorchDispatchMode):
    """A set of collectives, those of `native`, that sees when each is started and when it is waited for.

    Attributes:
        products: Their number so far, by the collective that was under way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.under_way = {"all_reduce": 0, "all_gather": 0, "reduce_scatter": 0}
        self.products = dict(self.under_way)

    broadcast = staticmethod(native.broadcast)

    def all_reduce(self, tensor: Tensor, group: Any, *, check: bool | None = None) -> Handle:
        return self._watch("all_reduce", native.all_reduce(tensor, group, check=check), tensor)

    def all_gather(self, tensor: Tensor, group: Any, *, check: bool | None = None) -> Handle:
        return self._watch("all_gather", native.all_gather(tensor, group, check=check), tensor)

    def reduce_scatter(self, tensor: Tensor, group: Any, *, check: bool | None = None) -> Handle:
        mine = tensor.detach().view(-1).tensor_split(dist.get_world_size(group))[dist.get_rank(group)]
        return self._watch("reduce_scatter", native.reduce_scatter(tensor, group, check=check), mine)

    def _watch(self, verb: str, started: Handle, result: Tensor) -> Handle:
        def arrived() -> None:
            started.wait()
            self.under_way[verb] -= 1

        self.under_way[verb] += 1
        return Handle((), result, arrived)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            for verb, traveling in self.under_way.items():
                self.products[verb] += bool(traveling)
        return func(*args, **(kwargs or {}))
