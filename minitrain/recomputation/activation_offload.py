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


class Shelf:
    """What one call of a block keeps for backward, on the host."""

    def __init__(self, before: Shelf | None, reader: ThreadPoolExecutor, parameters: Iterable[nn.Parameter]):
        self.before, self.reader = before, reader
        # Parameters are on the device anyway.
        self.stay = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        # Until the block has run, its memory is held here, so that no other tensor gets its address.
        self.alive: dict[int, Tensor] = {}
        self.host: list[Tensor] = []
        self.fetched: Future[list[Tensor]] | None = None

    def put(self, x: Tensor) -> Any:
        """The hook: x goes to the host, and autograd keeps its place on the shelf."""
        address = x.untyped_storage().data_ptr()
        if address in self.stay:
            return x
        if address not in self.alive:
            # All memory of which x is a view: other operations keep other views of it.
            self.alive[address] = x.new_empty(0).set_(x.untyped_storage())  # [elements of the memory]
            self.host.append(self.alive[address].to("cpu", copy=True))
        return list(self.alive).index(address), x.shape, x.stride(), x.storage_offset(), x.device

    def fetch(self, device: torch.device) -> Future[list[Tensor]]:
        """Start to bring everything back, in a thread."""
        if self.fetched is None:
            self.fetched = self.reader.submit(copies, self.host, device)
        return self.fetched

    def get(self, kept: Any) -> Tensor:
        """The hook: x again."""
        if isinstance(kept, Tensor):
            return kept
        place, shape, stride, offset, device = kept
        arrived = self.fetch(device).result()
        if self.before is not None:
            # While this block goes backward, what the next one needs arrives.
            self.before.fetch(device)
        return arrived[place].as_strided(shape, stride, offset)


def copies(host: list[Tensor], device: torch.device) -> list[Tensor]:
    """What the thread does: host to device."""
    return [torch.empty(x.shape, dtype=x.dtype, device=device).copy_(x) for x in host]


class Offload:
    """Has what each block keeps wait on the host; the blocks run in this order, one after the other."""

    def __init__(self, blocks: Iterable[nn.Module]):
        self.blocks, self.reader = list(blocks), ThreadPoolExecutor(1)
        self.last: Shelf | None = None
        for block in self.blocks:
            block.forward = partial(self.run, block, block.forward)

    def run(self, block: nn.Module, forward: Callable[..., Any], *inputs: Any) -> Any:
        """The block's forward, with a shelf for all that autograd keeps of it."""
        shelf = Shelf(self.last, self.reader, block.parameters())
        with saved_tensors_hooks(shelf.put, shelf.get):
            outputs = forward(*inputs)
        shelf.alive.clear()
        # After the last block autograd alone holds the shelves. Each leaves both memories when its backward is over.
        self.last = None if block is self.blocks[-1] else shelf
        return outputs


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
