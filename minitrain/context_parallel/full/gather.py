"""Every rank gathers all keys and values, and attends to them with its own queries: mode "gather".

**Source.** Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2: simple, and free to use any mask.
**Sent.** Forward: an all-gather of keys and values. Backward: the same again, so that they are not kept, and a
reduce-scatter of their gradients, in float32 at least.
**Cost.** All keys and values are on every rank while a layer's attention is computed. Nothing is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.context_parallel.full.kernels import Rule
from minitrain.context_parallel.full.local import Backward, Running
from minitrain.context_parallel.full.places import Block, Chunks, length, positions


class Gather:
    """The all-gather's way to all keys and values; `chunks` is what each rank holds."""

    def __init__(self, comm: Comm, chunks: Sequence[Chunks]):
        self.comm, self.chunks = comm, chunks
        self.longest = max(map(length, chunks))
        self.seq = chunks[-1][-1].stop
        self.even = self.seq == self.longest * len(chunks)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> tuple[Tensor, ...]:
        """This rank's output, after it what backward needs."""
        (mine,) = self.chunks[self.comm.rank]
        all_keys, all_values = self.gather(key, value)
        running = Running(query, positions((mine,), query.device), rule)
        running.add(all_keys, all_values, self.key_at(all_keys), self.blocks(rule.causal))
        output, logsum = running.result()
        return output, query, key, value, output, logsum

    def backward(self, gradient: Tensor, kept: Sequence[Tensor], rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of this rank's query, key and value."""
        query, key, value, output, logsum = kept
        (mine,) = self.chunks[self.comm.rank]
        # Kept from forward, they would take n times the memory of a rank's own, in every layer.
        all_keys, all_values = self.gather(key, value)
        backward = Backward(gradient, query, positions((mine,), query.device), output, logsum, rule)
        parts = backward.add(all_keys, all_values, self.key_at(all_keys), self.blocks(rule.causal))
        # Each rank has used all keys and values, so a gradient is a sum over ranks, and its owner needs the sum.
        # Zeros, for later tokens that no query of this rank sees.
        partial = parts[0].to_key.new_zeros(self.seq, *self.token(key))
        for keys, *gradients in parts:
            for number, part in enumerate(gradients):
                partial[keys, number] = part.permute(2, 0, 1, 3)
        total = self.comm.reduce_scatter(self.padded(partial)).wait()
        assert total is not None
        mine = total.view(-1, *self.token(key))[: key.shape[2]]  # [held, 2, batch, kv_heads, head]
        to_key, to_value = mine.permute(1, 2, 3, 0, 4)
        return backward.result(), to_key, to_value

    def gather(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values, each `[batch, kv_heads, seq, head]`, in the order of their positions."""
        # Tokens first, so that the chunks of ranks lie one after the other.
        buffer = key.new_empty(self.comm.ranks, self.longest, *self.token(key))
        for number, each in enumerate((key, value)):
            buffer[self.comm.rank, : key.shape[2], number] = each.permute(2, 0, 1, 3)
        # Each rank brings its keys and values, and gets those of all.
        self.comm.all_gather(buffer).wait()
        whole = buffer.flatten(0, 1)
        # Chunks of equal length need no copy.
        whole = whole if self.even else whole[self.slots(key.device)]  # [seq, 2, batch, kv_heads, head]
        all_keys, all_values = whole.permute(1, 2, 3, 0, 4)
        return all_keys, all_values

    def padded(self, partial: Tensor) -> Tensor:
        """`[seq, …]` with the chunk of each rank as long as the longest."""
        if self.even:
            return partial
        longer = partial.new_zeros(self.comm.ranks * self.longest, *partial.shape[1:])
        longer[self.slots(partial.device)] = partial
        return longer

    def slots(self, device: torch.device) -> Tensor:
        """Where each token is when the chunk of each rank is as long as the longest, `[seq]`."""
        starts = [rank * self.longest - self.chunks[rank][0].start for rank in range(self.comm.ranks)]
        counts = torch.tensor([length(chunks) for chunks in self.chunks], device=device)
        tokens = torch.arange(self.seq, device=device)
        return tokens + torch.tensor(starts, device=device).repeat_interleave(counts, output_size=self.seq)

    def token(self, key: Tensor) -> tuple[int, ...]:
        """The shape of one token's keys and values in all sequences."""
        return (2, *key.shape[:2], key.shape[-1])

    def blocks(self, causal: bool) -> list[Block]:
        """First this rank's own tokens, of which each query sees one at least, then all earlier ones."""
        (mine,) = self.chunks[self.comm.rank]
        queries = slice(0, len(mine))
        if not causal:
            return [Block(queries, slice(0, self.seq), False)]
        own = Block(queries, slice(mine.start, mine.stop), True)
        return [own, Block(queries, slice(0, mine.start), False)] if mine.start else [own]

    def key_at(self, keys: Tensor) -> Tensor:
        return torch.arange(keys.shape[-2], device=keys.device)
