"""A rank's own attention to keys that come block by block: the running output and logsum, and gradients likewise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minitrain.comm.messages import Handle
from minitrain.context_parallel.full.kernels import Rule, Tokens, attend, gradients, wider
from minitrain.context_parallel.full.places import Block


class Running:
    """Softmax(QKᵀ/√d) V over the keys seen so far. The first block must have a key for every query.

    `query` is this rank's, `[batch, heads, q, head]`, at the true positions `query_at`, `[q]`.
    """

    def __init__(self, query: Tensor, query_at: Tensor, rule: Rule):
        self.query, self.query_at, self.rule = query, query_at, rule
        self.output: Tensor | None = None  # [batch, heads, q, head], in float32 at least from the second block on
        self.logsum: Tensor | None = None  # [batch, heads, q]

    def add(self, key: Tensor, value: Tensor, key_at: Tensor, blocks: Iterable[Block]) -> None:
        """Attend to these keys, `[batch, kv_heads, k, head]`, as far as they are visible."""
        for queries, keys, causal in blocks:
            tokens = Tokens(self.query_at[queries], key_at[keys])
            query = self.query[:, :, queries]
            output, logsum = attend(query, key[:, :, keys], value[:, :, keys], causal, tokens, self.rule)
            if self.output is None or self.logsum is None:
                assert queries == slice(0, len(self.query_at)), "the first block has all queries"
                self.output, self.logsum = output, logsum
                continue
            self.output = self.output.to(wider(output.dtype))
            sums = self.logsum[:, :, queries]
            share = torch.sigmoid(logsum - sums)[..., None]  # of these keys, in the sum of all seen so far
            self.output[:, :, queries].lerp_(output.to(self.output.dtype), share.to(self.output.dtype))
            # Last, since the share needs the old sum. `sums` is a view, so this updates the running logsum.
            sums.copy_(torch.logaddexp(sums, logsum))

    def result(self) -> tuple[Tensor, Tensor]:
        """The output in the dtype of the query, and the logsum over all keys."""
        assert self.output is not None and self.logsum is not None
        return self.output.to(self.query.dtype), self.logsum


class Backward:
    """The gradients of a rank's queries, summed over all keys, and of keys and values as they come.

    `output` and `logsum` are those over all keys, and `gradient` is that of the output.
    """

    def __init__(self, gradient: Tensor, query: Tensor, query_at: Tensor, output: Tensor, logsum: Tensor, rule: Rule):
        # Kernels want the elements of a head next to each other, and the gradient of a sum has one for all.
        self.gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        self.query, self.query_at, self.output, self.logsum = query, query_at, output, logsum
        self.rule = rule
        self.to_query: Tensor | None = None  # [batch, heads, q, head], in float32 at least

    def add(self, key: Tensor, value: Tensor, key_at: Tensor, blocks: Iterable[Block]) -> list[Part]:
        """This rank's parts of the gradients of these keys and values; the query's are added up here."""
        parts = []
        for queries, keys, causal in blocks:
            to_query, to_key, to_value = gradients(
                self.gradient[:, :, queries],
                self.query[:, :, queries],
                key[:, :, keys],
                value[:, :, keys],
                self.output[:, :, queries],
                self.logsum[:, :, queries],
                causal,
                Tokens(self.query_at[queries], key_at[keys]),
                self.rule,
            )
            parts.append(Part(keys, to_key, to_value))
            if self.to_query is None:
                assert queries == slice(0, len(self.query_at)), "the first block has all queries"
                self.to_query = to_query.to(wider(to_query.dtype))
            else:
                self.to_query[:, :, queries] += to_query
        return parts

    def result(self) -> Tensor:
        """The gradient of the query, over all keys."""
        assert self.to_query is not None
        return self.to_query


class Part(NamedTuple):
    """What one block adds to the gradients of some keys and values, in float32 at least."""

    keys: slice  # which of those at hand
    to_key: Tensor  # [batch, kv_heads, keys, head]
    to_value: Tensor


def added(parts: Sequence[Part], onto: Tensor) -> Tensor:
    """The gradients of keys and values so far, `[2, batch, kv_heads, k, head]`, with these parts, in place."""
    for keys, to_key, to_value in parts:
        onto[0, :, :, keys] += to_key
        onto[1, :, :, keys] += to_value
    return onto


def together(parts: Sequence[Part], both: Tensor) -> Tensor:
    """The same of parts alone, in memory of their own, for keys and values of the shape of `both`."""
    # One block has all keys, so there is nothing to fill with zeros.
    if len(parts) == 1 and parts[0].keys == slice(0, both.shape[-2]):
        return torch.stack([parts[0].to_key, parts[0].to_value])
    return added(parts, torch.zeros_like(both, dtype=wider(both.dtype)))


def received(coming: Handle) -> Tensor:
    """What has arrived, once it has."""
    arrived = coming.wait()
    assert arrived is not None
    return arrived
