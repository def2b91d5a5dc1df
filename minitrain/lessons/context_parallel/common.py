"""What the lessons of this chapter share: inputs, one device's results, the bound between them, and watched blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from minitrain.comm import Ledger, SavedActivations, VirtualClock, World
from minitrain.context_parallel import online_softmax
from minitrain.costs import context_parallel as costs
from minitrain.costs.communication import Traffic
from minitrain.lessons.rows import Rows

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LIU = 'Liu et al. 2023, "Ring Attention with Blockwise Transformers", §3'
DAO = 'Dao 2023, "FlashAttention-2", §3.1'


class Sizes(NamedTuple):
    """Sizes of Q, K and V.

    Attributes:
        batch: Sequences.
        heads: Heads.
        seq: Tokens of the whole sequence.
        d: Elements of a head.
    """

    batch: int
    heads: int
    seq: int
    d: int

    @property
    def width(self) -> int:
        """Elements per token in each of Q, K and V."""
        return self.batch * self.heads * self.d


class Results(NamedTuple):
    """What one forward and backward gave, and what it cost this rank.

    Attributes:
        tensors: The output, and the gradients of Q, K and V.
        forward: What forward sent.
        backward: What backward sent.
        kept: Bytes kept for backward.
    """

    tensors: list[Tensor]
    forward: Ledger
    backward: Ledger
    kept: int


def inputs(world: World, sizes: Sizes, largest: float = 1.0) -> list[Tensor]:
    """Q, K, V and the gradient of the output, of the whole sequence: within ±1 (Q: ±largest), the same on all ranks."""
    shape = (4, sizes.batch, sizes.heads, sizes.seq, sizes.d)
    generator = torch.Generator().manual_seed(0)
    q, k, v, g = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1).to(world.device)
    return [largest * q, k, v, g]


def run(attend: Attend, tensors: list[Tensor], at: Tensor | None = None) -> Results:
    """Forward and backward with the tokens at positions `at`; None: with all of them."""
    q, k, v, g = (x if at is None else x[:, :, at.to(x.device)] for x in tensors)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with Ledger() as forward, SavedActivations() as saved:
        output = attend(*leaves)
    with Ledger() as backward:
        output.backward(g)
    return Results([output.detach(), *(x.grad for x in leaves if x.grad is not None)], forward, backward, saved.bytes)


def off(found: list[Tensor], tensors: list[Tensor], causal: bool, sizes: Sizes, at: Tensor | None = None) -> float:
    """The largest distance from torch's attention on one device, each in the largest value that it could have.

    These values are, with inputs within ±1: for the output 1, for dQ 2√d, for dK s · 2√d, for dV s (see `bound`). Not a
    number if any element is none.
    """
    expected = run(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), tensors).tensors
    root = math.sqrt(sizes.d)
    q_size = float(tensors[0].abs().max().clamp(min=1))
    largest = (1.0, 2 * root, 2 * root * sizes.seq * q_size, float(sizes.seq))
    gaps = []
    for ours, theirs, size in zip(found, expected, largest, strict=True):
        theirs = theirs if at is None else theirs[:, :, at.to(theirs.device)]
        gaps.append((ours - theirs).abs().max() / size)
    return float(torch.stack(gaps).max())  # torch's maximum, unlike Python's, keeps what is not a number


def bound(sizes: Sizes, blocks: int, largest: float = 1.0) -> float:
    """How far two ways of computing attention may differ in float64, u = 2⁻⁵³, in the largest value possible: 16R.

    With K, V and the output's gradient within ±1, and Q within ±q, scores are within ±X, X = q√d.

    - A score is a sum of d terms, divided: it errs by (d+2)u·X. The weight exp(x − m) errs by twice that, by 2Xu of
      the difference, and by 2u of its own: relatively less than (2d+6)(X+1)u.
    - Each of B blocks multiplies the sums by exp(m − m′), with a relative error of (2X+4)u, and a sum of s terms adds
      s·u. So the two sums err relatively by R = ((2d+6)(X+1) + s + B(2X+4))u at most, and the output by 2R and less.
    - In backward exp(x − logsum) errs by 2R, dP and do · o by 2R each, in d, their largest value. dX = P(dP − do · o)
      errs by 6R and less, in 2d/√d · P, and a sum of it over s tokens by one R more. So 8R for each gradient: dQ in
      Σₖ Pₖ 2√d = 2√d, dK in s · 2√d · q, dV in s.

    One device errs by no more, so that the two are within 16R.
    """
    x = largest * math.sqrt(sizes.d)
    rounding = (2 * sizes.d + 6) * (x + 1) + sizes.seq + blocks * (2 * x + 4)
    return 16 * rounding * 2.0**-53


def near(rows: Rows, what: str, found: float, sizes: Sizes, blocks: int, case: str, largest: float = 1.0) -> None:
    """Claim that a distance (`off`) is within the bound."""
    most, formula = bound(sizes, blocks, largest), "16R, R = ((2d+6)(X+1) + s + B(2X+4))u"
    rows.add(what, formula, most, found, "1", "derived", case=case, how="compared", relation="<=")


def compare(
    world: World,
    rows: Rows,
    attend: Callable[..., Tensor],
    held: Callable[[int], Tensor],
    traffic: Callable[..., Traffic],
    cases: list[tuple[Sizes, dict[str, bool]]],
    per_rank: int = 1,
) -> None:
    """Claim that outputs and gradients are one device's, and what is sent for them.

    Args:
        world: This rank.
        rows: Gets the claims.
        attend: The form; takes Q, K, V, `seq` and a case's options.
        held: The positions of this rank's tokens, of so many.
        traffic: The formula for forward.
        cases: Sizes, and options of the form.
        per_rank: Blocks of keys that a rank holds.
    """
    for sizes, options in cases:
        tensors, at, case = inputs(world, sizes), held(sizes.seq), f"{sizes.seq} tokens {options or ''}"
        found = run(partial(attend, seq=sizes.seq, **options), tensors, at)
        apart = off(found.tensors, tensors, options.get("causal", True), sizes, at)
        near(rows, "output, dQ, dK, dV: distance from one device's", apart, sizes, per_rank * world.size, case)
        forward = traffic(sizes.seq, sizes.width, world.size, world.rank, 8)
        backward = forward + costs.gradients_home(sizes.seq, sizes.width, world.size, 8)
        what, formula = "bytes sent by this rank, forward", "S_K + S_V − those of the next rank"
        rows.add(what, formula, forward.bytes, found.forward.sent, "B", LIU, case=case)
        what, formula = "bytes sent by this rank, backward", "forward + S_dK + S_dV"
        rows.add(what, formula, backward.bytes, found.backward.sent, "B", LIU, case=case)


class Block(NamedTuple):
    """Scores that were computed at once.

    Attributes:
        queries: First and last position of the queries.
        keys: First and last position of the keys.
        shape: Numbers of queries and keys.
        start: Virtual time at which it began; 0 without a clock.
        end: Virtual time at which it ended.
    """

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
