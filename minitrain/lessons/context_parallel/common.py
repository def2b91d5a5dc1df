"""What the lessons of this chapter share: inputs, one device's results next to a rank's, and watched blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from minitrain.comm import Ledger, SavedActivations, VirtualClock, World
from minitrain.context_parallel import online_softmax
from minitrain.costs import context_parallel as costs
from minitrain.costs.communication import Traffic
from minitrain.lessons.rows import ROUNDING, Rows

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LIU = 'Liu et al. 2023, "Ring Attention with Blockwise Transformers", §3'
NEAR = "output, dQ, dK, dV: distance from one device's"


class Results(NamedTuple):
    """Output and gradients of Q, K and V; what forward and backward sent; and bytes kept in between."""

    tensors: list[Tensor]
    forward: Ledger
    backward: Ledger
    kept: int


def inputs(world: World, sizes: costs.Attention, largest: float = 1.0) -> list[Tensor]:
    """Q, K, V and the gradient of the output, of the whole sequence: within ±1 (Q: ±largest), the same on all ranks."""
    generator, each = torch.Generator().manual_seed(0), (sizes.heads, sizes.key_heads, sizes.key_heads, sizes.heads)
    shapes = [(sizes.batch, heads, sizes.seq, sizes.head) for heads in each]
    drawn = [2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in shapes]
    q, *others = (tensor.to(world.device) for tensor in drawn)
    return [largest * q, *others]


def run(attend: Attend, tensors: list[Tensor], at: Tensor | None = None) -> Results:
    """Forward and backward with the tokens at positions `at`; None: with all of them."""
    q, k, v, g = (x if at is None else x[:, :, at.to(x.device)] for x in tensors)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with Ledger() as forward, SavedActivations() as saved:
        output = attend(*leaves)
    with Ledger() as backward:
        output.backward(g)
    return Results([output.detach(), *(x.grad for x in leaves if x.grad is not None)], forward, backward, saved.bytes)


def documents(world: World, sizes: costs.Attention) -> Tensor:
    """The number of each token's document, [batch, seq]: up to three per sequence, which begin within ranks."""
    tokens = torch.arange(sizes.seq, device=world.device) + torch.arange(sizes.batch, device=world.device)[:, None]
    return tokens // (2 * sizes.seq // 5 + 1)


def visible(world: World, sizes: costs.Attention, causal: bool = True, documents: Tensor | None = None) -> Tensor:
    """Which keys each query sees, [batch or 1, 1, seq, seq]."""
    seen = torch.ones(1, 1, sizes.seq, sizes.seq, dtype=torch.bool, device=world.device)
    seen = seen.tril() if causal else seen
    return seen if documents is None else seen & (documents[:, None, :, None] == documents[:, None, None, :])


def near(
    rows: Rows, what: str, found: Results, tensors: list[Tensor], seen: Tensor, at: Tensor | None, case: str
) -> None:
    """Claim that output and gradients are those of torch's attention on one device, at this rank's positions."""
    expected = run(partial(scaled_dot_product_attention, attn_mask=seen, enable_gqa=True), tensors).tensors
    own = [x if at is None else x[:, :, at.to(x.device)] for x in expected]
    rows.near(what, found.tensors, own, 1e-12, "10⁻¹²", ROUNDING, case)


def compare(
    world: World,
    rows: Rows,
    attend: Callable[..., Tensor],
    held: Callable[[int], Tensor],
    traffic: Callable[..., Traffic],
    scores: tuple[str, Callable[[int, int, int], float]],
    cases: list[tuple[costs.Attention, dict[str, Any]]],
) -> None:
    """Claim of a form with the options of each case that outputs and gradients are one device's, and what is sent.

    Args:
        world: This rank.
        rows: Gets the claims.
        attend: The form; takes Q, K, V, `seq` and a case's options.
        held: The positions of this rank's tokens, of so many.
        traffic: The formula for forward.
        scores: The formula for the scores that a rank computes under a causal mask, and its function for forward.
        cases: Sizes, and options of the form.
    """
    for sizes, options in cases:
        tensors, at, case = inputs(world, sizes), held(sizes.seq), f"{sizes.seq} tokens {options or ''}"
        with watched() as blocks:
            found = run(partial(attend, seq=sizes.seq, **options), tensors, at)
        near(rows, NEAR, found, tensors, visible(world, sizes, **options), at, case)
        width = sizes.batch * sizes.key_heads * sizes.head
        forward = traffic(sizes.seq, width, world.size, world.rank, 8)
        backward = forward + costs.gradients_home(sizes.seq, width, world.size, 8)
        what, formula = "bytes sent by this rank, forward", "S_K + S_V − those of the next rank"
        rows.add(what, formula, forward.bytes, found.forward.sent, "B", LIU, case=case)
        what, formula = "bytes sent by this rank, backward", "forward + S_dK + S_dV"
        rows.add(what, formula, backward.bytes, found.backward.sent, "B", LIU, case=case)
        if options.get("causal", True):  # backward computes the same blocks again
            formula, of_forward = scores
            predicted, measured = 2 * of_forward(sizes.seq, world.size, world.rank), sum(each.scores for each in blocks)
            rows.add("scores that this rank computes, causal", formula, predicted, measured, "1", "derived", case=case)


class Block(NamedTuple):
    """Scores computed at once: first and last position of queries and of keys, their numbers, and virtual times."""

    queries: tuple[int, int]
    keys: tuple[int, int]
    shape: tuple[int, int]
    start: float
    end: float

    @property
    def scores(self) -> int:
        """How many they are, for each sequence and head."""
        return self.shape[0] * self.shape[1]


@contextmanager
def watched(clock: VirtualClock | None = None, score: float = 0.0) -> Iterator[list[Block]]:
    """Lists the blocks of scores that this rank computes meanwhile: `with watched() as blocks: …`.

    Args:
        clock: Advances by `score` for each score of a block. A block of which the mask hides some, that is, one on the
            diagonal, takes half of that: a kernel leaves out its upper half.
        score: Virtual seconds per score, for all sequences and heads together.
    """
    blocks: list[Block] = []
    compute = online_softmax.scores

    def scores(query: Tensor, key: Tensor, query_at: Tensor, key_at: Tensor, causal: bool) -> Tensor:
        x = compute(query, key, query_at, key_at, causal)
        shape, start = (x.shape[-2], x.shape[-1]), clock.now if clock else 0.0
        ends = (int(query_at[0]), int(query_at[-1])), (int(key_at[0]), int(key_at[-1]))
        if clock:
            diagonal = bool(x.isneginf().any()) or (causal and ends[0] == ends[1])  # of one token, nothing is hidden
            clock.work(score * shape[0] * shape[1] / (2 if diagonal else 1), f"{ends[0][0]}, {ends[1][0]}")
        blocks.append(Block(*ends, shape, start, clock.now if clock else 0.0))
        return x

    with mock.patch.object(online_softmax, "scores", scores):
        yield blocks
