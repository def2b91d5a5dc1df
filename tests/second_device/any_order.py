"""Repeated ids, added in any order, as a GPU's atomic additions do."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class AnyOrder(TorchDispatchMode):
    """`index_add` takes its rows in another order each time: where an id comes back, the sum has other last bits."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().startswith("aten::index_add"):
            into, dim, index, source = args
            order = torch.randperm(len(index))
            args = (into, dim, index[order], source.index_select(dim, order))
        return func(*args, **(kwargs or {}))
