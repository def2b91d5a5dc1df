"""Shared by the demos of `ulysses` and `all_gather`: attention on one device, and a bound on the distance from it.

**The bound.** Let all elements of Q, K, V and of the output's gradient be at most 1 in size, and let u = 2⁻⁵³. Terms in
u² are left out. A score is a sum of d products over √d. Its size is at most √d, and its error at most (d + 6)√d·u,
which includes scaling and the subtraction of the maximum. A weight p is an exponential over a sum of s exponentials.
Its relative error is at most E = (2(d + 6)√d + 7s + 9)u: two exponents, two exponentials of at most 4u each, the sum,
and the division. A kernel that works in blocks of keys rescales its sums with one more exponential, at most once per
key; this is the other 6s. An output is Σp·v with Σp = 1, so its error is at most E + su.

In backward, dP = dO·Vᵀ and D = Σ dO·O are at most d. The gradient of a score, dS = p(dP − D), is at most 2dp, and its
error is at most p·d(3E + 2(d + s + 2)u). Then dQ = dS·K/√d, and dK = dSᵀ·Q/√d is a sum over s queries of each of the h
heads that share a key head. Hence the error of any gradient, dV = Pᵀ·dO included, is at most
sh√d(3E + 2(d + s + 2)u + 2shu).

Two ways of computing the same are both wrong by at most that much, so their distance is at most twice the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.costs.context_parallel import Attention
from minitrain.lessons.rows import Rows

U = 2.0**-53


class Bounds(NamedTuple):
    """How far outputs and gradients may be from those of one device."""

    output: float
    gradients: float


def bounds(sizes: Attention) -> Bounds:
    """The bounds of this file's head."""
    d, s, h = sizes.head, sizes.seq, sizes.heads // sizes.key_heads
    weight = (2 * (d + 6) * math.sqrt(d) + 7 * s + 9) * U
    gradient = s * h * math.sqrt(d) * (3 * weight + 2 * (d + s + 2) * U + 2 * s * h * U)
    return Bounds(2 * (weight + s * U), 2 * gradient)


@dataclass(frozen=True)
class Whole:
    """Q, K, V and the output's gradient of all tokens, in float64 between −1 and 1, the same on every rank.

    Attributes:
        world: This rank.
        sizes: Heads and lengths.
        order: The true positions of the tokens, in the order in which the ranks hold them.
    """

    world: World
    sizes: Attention
    order: list[int]

    def tensors(self) -> list[Tensor]:
        """Q, K, V and dO, `[batch, heads or key heads, seq, head]`, tokens in their true order."""
        one, generator = self.sizes, torch.Generator().manual_seed(0)
        shapes = [(one.batch, heads, one.seq, one.head) for heads in (one.heads, *[one.key_heads] * 2, one.heads)]
        drawn = [2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1 for shape in shapes]
        return [each.to(self.world.device) for each in drawn]

    def own(self, whole: Tensor) -> Tensor:
        """This rank's tokens."""
        mine = torch.tensor(self.order, device=whole.device).chunk(self.world.size)[self.world.rank]
        return whole[:, :, mine].contiguous()


class Run(NamedTuple):
    """This rank's output and gradients of Q, K and V, and what it sent."""

    output: Tensor
    gradients: list[Tensor]
    forward: Ledger
    backward: Ledger


def one_device(whole: Whole, visible: Callable[[int, int, int], bool]) -> list[Tensor]:
    """The output and gradients of Q, K and V of this rank's tokens, with softmax written out for all of them.

    Args:
        whole: All tokens.
        visible: Whether in a sequence a query sees a key: its arguments are the numbers of sequence, query and key.
    """
    *qkv, towards = whole.tensors()
    q, k, v = (each.requires_grad_() for each in qkv)
    batch, times = range(whole.sizes.batch), whole.sizes.heads // whole.sizes.key_heads
    tokens = range(whole.sizes.seq)
    table = [[[visible(number, query, key) for key in tokens] for query in tokens] for number in batch]
    hidden = ~torch.tensor(table, device=q.device)[:, None]  # [batch, 1, seq, seq]
    keys, values = (torch.stack([each] * times, 2).flatten(1, 2) for each in (k, v))  # [batch, heads, seq, head]
    scores = (q @ keys.mT / math.sqrt(whole.sizes.head)).masked_fill(hidden, -math.inf)
    output = scores.softmax(-1) @ values
    output.backward(towards)
    return [whole.own(each) for each in (output.detach(), *(x.grad for x in (q, k, v) if x.grad is not None))]


def run(whole: Whole, attention: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Run:
    """Attention of this rank's tokens, forward and backward, each with a ledger."""
    q, k, v, towards = (whole.own(each) for each in whole.tensors())
    for each in (q, k, v):
        each.requires_grad_()
    with Ledger() as forward:
        output = attention(q, k, v)
    with Ledger() as backward:
        output.backward(towards)
    return Run(output.detach(), [x.grad for x in (q, k, v) if x.grad is not None], forward, backward)


def compare(rows: Rows, whole: Whole, found: Run, visible: Callable[[int, int, int], bool], case: str) -> None:
    """Claim that outputs and gradients are within the bounds of one device's."""
    (output, *gradients), limit, source = one_device(whole, visible), bounds(whole.sizes), "derived, see the lesson"
    what = "distance of outputs from one device's"
    rows.near(what, found.output, output, limit.output, "2(E + su)", source, case)
    what, formula = "distance of the gradients of Q, K and V from one device's", "2sh√d(3E + 2(d + s + 2)u + 2shu)"
    rows.near(what, found.gradients, gradients, limit.gradients, formula, source, case)


def documents(sizes: Attention) -> list[list[int]]:
    """The number of each token's document: up to three per sequence, which begin and end within ranks."""
    length = 2 * sizes.seq // 5 + 1
    return [[(token + number) // length for token in range(sizes.seq)] for number in range(sizes.batch)]


def masks(sizes: Attention) -> dict[str, tuple[Callable[[int, int, int], bool], dict[str, Any]]]:
    """The masks of the demos: whether a query sees a key, and the same as arguments `causal` and `documents`."""
    of = documents(sizes)
    return {
        "causal": (lambda number, query, key: key <= query, {}),
        "not causal": (lambda number, query, key: True, {"causal": False}),
        "document mask": (
            lambda number, query, key: key <= query and of[number][key] == of[number][query],
            {"documents": of},
        ),
    }
