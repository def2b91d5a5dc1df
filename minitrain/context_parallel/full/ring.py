"""Keys and values travel around the ranks, and so do their gradients: modes "ring" and "zigzag".

**Sent.** Forward: n−1 messages of a rank's keys and values, each started before the block at hand is computed.
Backward: the same again, and n−1 messages of the gradients of keys and values, in float32 at least. (In the small form
the rank's own part travels too, n messages in all.)
**Cost.** A rank holds its own keys and values, those at hand, and those that arrive. Hidden blocks are not computed,
but their keys and values are passed on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle, exchange
from minitrain.context_parallel.full.kernels import Rule
from minitrain.context_parallel.full.local import Backward, Part, Running, added, received, together
from minitrain.context_parallel.full.places import Chunks, length, positions, visible


class Ring:
    """The ring's way to all keys and values; `chunks` is what each rank holds."""

    def __init__(self, comm: Comm, chunks: Sequence[Chunks]):
        self.comm, self.chunks = comm, chunks

    def forward(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> tuple[Tensor, ...]:
        """This rank's output, after it what backward needs."""
        rank, ranks, device = self.comm.rank, self.comm.ranks, query.device
        running = Running(query, positions(self.chunks[rank], device), rule)
        own = passing = torch.stack([key, value])  # [2, batch, kv_heads, held, head]
        for step in range(ranks):
            # Its own keys come first, of which each query sees one at least, as `Running` needs.
            owner = (rank - step) % ranks
            # The next keys and values arrive, and these leave, while this block is computed.
            coming = self.pass_on(passing, owner - 1) if step < ranks - 1 else None
            chunks = self.chunks[owner]
            blocks = visible(self.chunks[rank], chunks, rule.causal)
            running.add(passing[0], passing[1], positions(chunks, device), blocks)
            passing = received(coming) if coming else passing
        output, logsum = running.result()
        # Of keys and values only its own: the others travel again in backward.
        return output, query, own, output, logsum

    def backward(self, gradient: Tensor, kept: Sequence[Tensor], rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of this rank's query, key and value."""
        query, passing, output, logsum = kept
        rank, ranks, device = self.comm.rank, self.comm.ranks, query.device
        backward = Backward(gradient, query, positions(self.chunks[rank], device), output, logsum, rule)
        home: list[Part] = []
        returning: Handle | None = None
        for step in range(ranks):
            owner = (rank - step) % ranks
            coming = self.pass_on(passing, owner - 1) if step < ranks - 1 else None
            chunks = self.chunks[owner]
            blocks = visible(self.chunks[rank], chunks, rule.causal)
            parts = backward.add(passing[0], passing[1], positions(chunks, device), blocks)
            if step == 0:
                # It waits at home, where the sum of all other ranks' parts arrives after n−1 messages.
                home = parts
            else:
                # What the ranks between the owner and this one have added arrived while this block was computed.
                total = added(parts, received(returning)) if returning else together(parts, passing)
                # On to the next rank; at the last step that is the owner, and this rank's own gradients arrive.
                returning = self.pass_on(total, owner - 1)
            passing = received(coming) if coming else passing
        to_key, to_value = added(home, received(returning)) if returning else home[0][1:]
        return backward.result(), to_key, to_value

    def pass_on(self, tensor: Tensor, source_owner: int) -> Handle:
        """Send to the next rank, and receive what belongs to `source_owner` from the one before."""
        rank, ranks = self.comm.rank, self.comm.ranks
        shape = list(tensor.shape)
        # Chunks may differ in length, so the buffer is as long as what arrives.
        shape[-2] = length(self.chunks[source_owner % ranks])
        return exchange(tensor, (rank + 1) % ranks, tensor.new_empty(shape), (rank - 1) % ranks, self.comm.group)
