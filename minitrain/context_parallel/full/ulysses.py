"""All-to-alls turn a cut along the sequence into a cut along the heads, and back: mode "ulysses".

**Source.** Jacobs et al. 2023, "DeepSpeed Ulysses", §3.1 and §3.2.
**Sent.** Forward: an all-to-all each for queries, keys, values, and outputs. Backward: one for the gradient of each.
With fewer key and value heads than ranks, neighboring ranks get the same one. Its gradient then travels in float32 at
least, because it is a sum over ranks.
**Cost.** Each rank holds all tokens of its heads until backward: as much as its own tokens of all heads, and more where
it shares key heads with other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from minitrain.comm.comm import Comm
from minitrain.comm.messages import Handle, all_to_all
from minitrain.context_parallel.full.kernels import Rule
from minitrain.context_parallel.full.local import Backward, Running, received
from minitrain.context_parallel.full.places import Block, Chunks, length


class Ulysses:
    """The way to all keys and values of some heads; `chunks` is what each rank holds, and ranks must divide `heads`."""

    def __init__(self, comm: Comm, chunks: Sequence[Chunks], heads: int, kv_heads: int):
        self.comm, self.counts = comm, [length(each) for each in chunks]
        share, sharing = heads // comm.ranks, heads // kv_heads
        self.query_heads = [range(rank * share, (rank + 1) * share) for rank in range(comm.ranks)]
        # The key heads that a rank's query heads use; a head that two ranks use goes to both.
        self.kv_heads = [range(mine[0] // sharing, mine[-1] // sharing + 1) for mine in self.query_heads]
        first = self.kv_heads[comm.rank].start
        self.used = [head // sharing - first for head in self.query_heads[comm.rank]]  # by each query head
        each = len(self.used) // len(self.kv_heads[comm.rank])
        self.evenly = self.used == [number // each for number in range(len(self.used))]

    def forward(self, query: Tensor, key: Tensor, value: Tensor, rule: Rule) -> tuple[Tensor, ...]:
        """This rank's output, after it what backward needs."""
        ranges = (self.query_heads, self.kv_heads, self.kv_heads)
        # Three messages to each rank, all under way together.
        started = [self.to_heads(each, of) for each, of in zip((query, key, value), ranges, strict=True)]
        query, key, value = (self.all_tokens(each, of) for each, of in zip(started, ranges, strict=True))
        every = torch.arange(query.shape[-2], device=query.device)
        running = Running(query, every, self.of_heads(rule))
        running.add(self.of_each(key), self.of_each(value), every, self.block(rule))
        output, logsum = running.result()
        mine = self.own_tokens(self.to_tokens(output, self.query_heads), self.query_heads)
        return mine, query, key, value, output, logsum

    def backward(self, gradient: Tensor, kept: Sequence[Tensor], rule: Rule) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of this rank's query, key and value."""
        query, key, value, output, logsum = kept
        gradient = self.all_tokens(self.to_heads(gradient, self.query_heads), self.query_heads)
        every = torch.arange(query.shape[-2], device=query.device)
        backward = Backward(gradient, query, every, output, logsum, self.of_heads(rule))
        ((_, *to_both),) = backward.add(self.of_each(key), self.of_each(value), every, self.block(rule))
        # Several query heads have used the same key head, which was repeated for them.
        if not self.evenly:
            used = torch.tensor(self.used, device=key.device)
            to_both = [each.new_zeros(key.shape).index_add_(1, used, each) for each in to_both]
        # True if no key head is on two ranks.
        if sum(map(len, self.kv_heads)) == self.kv_heads[-1].stop:
            to_both = [each.to(key.dtype) for each in to_both]  # of this rank alone: complete, and rounded here
        parts = (backward.result().to(query.dtype), *to_both)
        ranges = (self.query_heads, self.kv_heads, self.kv_heads)
        # All three are on their way before the first is waited for.
        started = [self.to_tokens(each, of) for each, of in zip(parts, ranges, strict=True)]
        to_query, to_key, to_value = (self.own_tokens(each, of) for each, of in zip(started, ranges, strict=True))
        return to_query, to_key, to_value

    def to_heads(self, x: Tensor, ranges: Sequence[range]) -> Handle:
        """Start sending each rank its heads of this rank's tokens, `[batch, heads, held, head]`."""
        batch, _, held, head = x.shape
        rows = torch.cat([x[:, of.start : of.stop].reshape(-1, head) for of in ranges])
        mine = len(ranges[self.comm.rank])
        leaving = [batch * len(of) * held for of in ranges]
        return all_to_all(rows, leaving, [batch * mine * count for count in self.counts], self.comm.group)

    def all_tokens(self, coming: Handle, ranges: Sequence[range]) -> Tensor:
        """This rank's heads of all tokens, `[batch, heads/n, seq, head]`."""
        rows = received(coming)
        mine = len(ranges[self.comm.rank])
        batch = len(rows) // (mine * sum(self.counts))
        parts = rows.split([batch * mine * count for count in self.counts])
        shaped = [part.view(batch, mine, count, -1) for part, count in zip(parts, self.counts, strict=True)]
        return torch.cat(shaped, dim=2)

    def to_tokens(self, x: Tensor, ranges: Sequence[range]) -> Handle:
        """Start sending each rank its tokens of this rank's heads, `[batch, heads/n, seq, head]`."""
        batch, mine, _, head = x.shape
        rows = torch.cat([part.reshape(-1, head) for part in x.split(self.counts, dim=2)])
        held = self.counts[self.comm.rank]
        arriving = [batch * len(of) * held for of in ranges]
        return all_to_all(rows, [batch * mine * count for count in self.counts], arriving, self.comm.group)

    def own_tokens(self, coming: Handle, ranges: Sequence[range]) -> Tensor:
        """All heads of this rank's tokens, `[batch, heads, held, head]`; of a head on several ranks the sum."""
        rows, held = received(coming), self.counts[self.comm.rank]
        batch = len(rows) // (sum(map(len, ranges)) * held)
        counts = [batch * len(of) * held for of in ranges]
        parts = [part.view(batch, -1, held, rows.shape[-1]) for part in rows.split(counts)]
        if sum(map(len, ranges)) == ranges[-1].stop:
            return torch.cat(parts, dim=1)
        total = rows.new_zeros(batch, ranges[-1].stop, held, rows.shape[-1])
        for of, part in zip(ranges, parts, strict=True):
            total[:, of.start : of.stop] += part
        return total

    def of_each(self, x: Tensor) -> Tensor:
        """Key heads as kernels want them, each shared by equally many query heads."""
        return x if self.evenly else x[:, self.used]

    def block(self, rule: Rule) -> list[Block]:
        """All queries and all keys at once."""
        every = slice(0, sum(self.counts))
        return [Block(every, every, rule.causal)]

    def of_heads(self, rule: Rule) -> Rule:
        """The same rule with this rank's heads at their numbers."""
        if rule.dropout is None:
            return rule
        # A mask belongs to a head of the whole model, wherever it is computed.
        first = rule.dropout.first_head + self.query_heads[self.comm.rank].start
        return replace(rule, dropout=replace(rule.dropout, first_head=first))
