"""Activation offloading: what a block keeps for backward waits on the host, and comes back one block ahead of its use.

**Idea.** Backward uses the blocks in reverse order, so a block's activations are needed the later the earlier it ran.
Each block's go to the host when they are made. When backward comes to a block, a thread fetches those of the block
that is next, the one before it in the model.
**Source.** Rhu et al. 2016, "vDNN: virtualized deep neural networks for scalable, memory-efficient neural network
design", §3; torch.autograd.graph.save_on_cpu does it without fetching ahead.
**Sent.** Every activation crosses to the host once, and back once.
**Cost.** The device holds two blocks' activations at most, the second of them still arriving, and the host all of them.
It costs time where a block takes longer to copy than to compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks


def whole(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of, as a row."""
    return tensor.detach().as_strided((tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0)


def back(host: list[Tensor], device: torch.device) -> list[Tensor]:
    """Copies on the device."""
    return [tensor.to(device, copy=True) for tensor in host]


class Shelf:
    """The activations of one call of a block, on the host."""

    def __init__(self, before: Shelf | None, reader: ThreadPoolExecutor, parameters: Iterable[nn.Parameter]):
        self.before, self.after, self.reader = before, None, reader
        if before is not None:
            before.after = self
        # Parameters are on the device anyway.
        self.stay = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.alive: dict[int, Tensor] = {}
        self.host: list[Tensor] = []
        self.fetched: Future[list[Tensor]] | None = None

    def put(self, tensor: Tensor) -> Any:
        """The hook: autograd keeps a place on the shelf, and the tensor goes to the host."""
        address = tensor.untyped_storage().data_ptr()
        if address in self.stay:
            return tensor
        if address not in self.alive:
            # Operations that keep the same memory share a copy. Until the block has run, the memory is held here, so
            # that no other tensor gets its address.
            self.alive[address] = whole(tensor)
            self.host.append(self.alive[address].to("cpu", copy=True))
        place = list(self.alive).index(address)
        return place, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device

    def fetch(self, device: torch.device) -> Future[list[Tensor]]:
        """Start to bring all of it back, in a thread."""
        if self.fetched is None:
            self.fetched = self.reader.submit(back, self.host, device)
        return self.fetched

    def get(self, kept: Any) -> Tensor:
        """The hook: the tensor again."""
        if isinstance(kept, Tensor):
            return kept
        place, shape, stride, offset, device = kept
        if self.after is not None:
            # Its backward is over; what it used leaves the device before more comes.
            self.after.fetched = None
        arrived = self.fetch(device).result()
        if self.before is not None:
            # While this block goes backward, the next one's activations arrive.
            self.before.fetch(device)
        return arrived[place].as_strided(shape, stride, offset)


class Offload:
    """Has each block's activations wait on the host; the blocks run one after the other, from the first."""

    def __init__(self, blocks: Iterable[nn.Module]):
        self.reader = ThreadPoolExecutor(1)
        self.last: Shelf | None = None
        for number, block in enumerate(blocks):
            block.forward = partial(self.run, number, block, block.forward)

    def run(self, number: int, block: nn.Module, forward: Callable[..., Any], *inputs: Tensor) -> Any:
        """The block's forward, of which everything that autograd keeps goes on a shelf."""
        # A step begins with block 0, which has none before it.
        shelf = self.last = Shelf(self.last if number else None, self.reader, block.parameters())
        with saved_tensors_hooks(shelf.put, shelf.get):
            outputs = forward(*inputs)
        shelf.alive.clear()
        return outputs


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
