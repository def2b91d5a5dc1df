"""Activation offloading: what a block keeps for backward waits on the host, and returns one block ahead of its use.

**Idea.** Backward takes the blocks in reverse order, so the activations of the first block wait longest. Each block's
go to the host when forward makes them. When backward comes to a block, a thread fetches those of the block before it.
**Source.** Rhu et al. 2016, "vDNN: virtualized deep neural networks for scalable, memory-efficient neural network
design", §3. torch.autograd.graph.save_on_cpu does it without fetching ahead.
**Sent.** Each activation crosses to the host once, and back once. Nothing is sent between ranks.
**Cost.** In backward the device holds two blocks' activations at most, the second of them still arriving. The host
holds all of them. It takes time where a block's activations are copied more slowly than the block is computed.
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
    """The activations of one call of a block, on the host; autograd holds it for as long as it needs them."""

    def __init__(self, block: nn.Module, offload: Offload):
        self.before, self.reader, self.side = offload.last, offload.reader, offload.side
        # Parameters are on the device anyway.
        self.stay = {each.untyped_storage().data_ptr() for each in block.parameters()}
        # Until the block has run, its memory is held here, so that no other tensor gets its address.
        self.alive, self.host = dict[tuple[int, int], Tensor](), list[Tensor]()
        self.fetched: Future[list[Tensor]] | None = None

    def put(self, x: Tensor) -> Any:
        """The hook: x goes to the host, and autograd keeps where it is on the shelf."""
        # What has been written into since is another activation.
        key = x.untyped_storage().data_ptr(), x._version
        if key[0] in self.stay:
            return x
        if key not in self.alive:
            # All memory of which x may be a view: other operations keep other views of it, also of other dtypes.
            memory = x.new_empty(0, dtype=torch.uint8).set_(x.untyped_storage())  # [bytes of the storage]
            if self.side:
                # The copy comes after what computed x, and x's memory is used again only after the copy.
                self.side.wait_stream(torch.cuda.current_stream())
                memory.record_stream(self.side)
            with torch.cuda.stream(self.side):
                # From a GPU, non_blocking makes it pinned memory, and forward goes on at once.
                self.host.append(memory.to("cpu", non_blocking=True, copy=True))
            self.alive[key] = memory
        return list(self.alive).index(key), x.dtype, x.shape, x.stride(), x.storage_offset(), x.device

    def get(self, kept: Any) -> Tensor:
        """The hook: x again."""
        if isinstance(kept, Tensor):
            return kept
        number, dtype, shape, stride, offset, device = kept
        arrived = self.fetch(device).result()
        if self.before is not None:
            # While this block goes backward, the activations of the next one in backward arrive.
            self.before.fetch(device)
        return torch.empty(0, dtype=dtype, device=device).set_(arrived[number].untyped_storage(), offset, shape, stride)

    def fetch(self, device: torch.device) -> Future[list[Tensor]]:
        """Start to bring everything back, in a thread."""
        if self.fetched is None:
            room = [torch.empty(each.shape, dtype=each.dtype, device=device) for each in self.host]
            if self.side:
                # Earlier backwards may still use this room.
                self.side.wait_stream(torch.cuda.current_stream())
            self.fetched = self.reader.submit(copy, room, self.host)
        return self.fetched


def copy(room: list[Tensor], host: list[Tensor]) -> list[Tensor]:
    """What the thread does: host to device, while the device computes."""
    return [to.copy_(x) for to, x in zip(room, host, strict=True)]


class Offload:
    """Has each block's activations wait on the host.

    Args:
        blocks: They run one after the other in this order, once in each forward.
    """

    def __init__(self, blocks: Iterable[nn.Module]):
        blocks = list(blocks)
        self.last: Shelf | None = None
        # Copies have a stream of their own.
        side = self.side = torch.cuda.Stream() if next(blocks[0].parameters()).is_cuda else None
        # With the stream the thread also gets this rank's GPU: a new thread's is number 0.
        self.reader = ThreadPoolExecutor(1, initializer=(lambda: torch.cuda.set_stream(side)) if side else None)
        for block in blocks:
            block.forward = partial(self.run, block, block is blocks[-1], block.forward)

    def run(self, block: nn.Module, ends: bool, forward: Callable[..., Any], *inputs: Any) -> Any:
        """The block's forward; everything that autograd keeps of it goes on a shelf."""
        shelf = Shelf(block, self)
        with saved_tensors_hooks(shelf.put, shelf.get):
            outputs = forward(*inputs)
        shelf.alive.clear()
        # After the last block only autograd holds shelves, and each is gone once its block has gone backward.
        self.last = None if ends else shelf
        return outputs


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
