"""Bytes that cross between device and host, counted operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Crossings(TorchDispatchMode):
    """Counts the bytes that cross between device and host in the operations of this rank: `with Crossings(…) as found`.

    Where both memories are the CPU's, devices do not tell them apart, and origins do: the host has the tensors that it
    is given here, what is computed from these alone, and what `.to("cpu")` copies. An operation that reads the other
    memory makes what it reads cross; a copy as many bytes as the larger of source and target has, since numbers that
    are rounded only after they have arrived cross in full.
    `out` are the bytes to the host so far, `back` those to the device.
    """

    def __init__(self, host: Iterable[Tensor | None]):
        super().__init__()
        self.out = self.back = 0
        self._host: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used twice
        for tensor in host:
            self.add(tensor)

    def add(self, tensor: Tensor | None) -> None:
        """Take a tensor for one on the host."""
        if tensor is not None:
            storage = tensor.untyped_storage()
            self._host[storage._cdata] = storage

    def on_host(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the host."""
        return tensor.untyped_storage()._cdata in self._host

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if not read:
            return result
        target = read[0]
        if func is torch.ops.aten._to_copy.default and result.device.type == "cpu" and result.dtype == target.dtype:
            target = result  # neither rounded nor widened: it was copied in order to be moved
            self.add(target)
        elif all(map(self.on_host, read)):
            for leaf in tree_leaves(result):
                self.add(leaf if isinstance(leaf, Tensor) else None)
        for source in read:
            if self.on_host(source) != self.on_host(target):
                size = max(source.nbytes, target.nbytes) if func is torch.ops.aten.copy_.default else source.nbytes
                self.out += size if self.on_host(target) else 0
                self.back += 0 if self.on_host(target) else size
        return result
