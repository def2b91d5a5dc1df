"""`minitrain.recomputation.every_kth` in place: the model's own forward, further arguments, hooks, and checks.

**Sent.** A block that communicates in its forward communicates again when it is computed again.
**Cost.** `minitrain.costs.recomputation`: `kept_by_segments`, `peak_of_segments`; the best k by `best_k`, nearly √(L ·
input/block). A transformer's block keeps 16 times its input, so single blocks (`every_block`) are best up to 32 of
them; the root counts from there on.
Also called sublinear memory, checkpointing every k layers; Megatron-LM's `uniform` method.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from minitrain.recomputation.full.checkpoint import checkpoint
from minitrain.recomputation.full.every_block import check


def recompute(blocks: Iterable[nn.Module], k: int, checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each segment of k consecutive blocks keep its input only. Works in place; names stay as they are.

    The call of a segment's first block runs all of its blocks, the calls of the others pass their input on. So the
    model must call the blocks directly one after another, each with the result of the one before and the same further
    arguments. A block's own hooks are called inside, in forward and again when the segment is computed again: ZeRO-3
    with blocks for units finds each block's calls as they happen.

    Args:
        blocks: Modules in the order in which they are called, each from a tensor to a tensor. For example,
            `gpt.blocks`.
        k: Blocks in a segment. The last segment takes what is left; 1 is as `every_block`.
        checkpoint: Calls a function and keeps its arguments, as in `every_block.recompute`.

    Raises:
        ValueError: There is no block, one is already recomputed or occurs twice, or k is less than 1.

    Source: Chen et al. 2016, §4.1.
    """
    chosen = list(blocks)
    check(chosen)
    if len(set(chosen)) < len(chosen):
        raise ValueError(
            "blocks has the same block twice, which cannot belong to two segments; use every_block.recompute"
        )
    if k < 1:
        raise ValueError(f"k={k} must be at least 1; about √{len(chosen)} is usual")
    for first in range(0, len(chosen), k):
        Segment(chosen[first : first + k], checkpoint)


class Chain(nn.Module):
    """The blocks of a segment, called one after another."""

    def __init__(self, blocks: list[nn.Module]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.calls = [block._call_impl for block in blocks]  # their current calls, hooks included

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        for number, call in enumerate(self.calls):
            x = call(x, *args, **kwargs)
            if not isinstance(x, Tensor):
                name = type(self.blocks[number]).__name__
                raise TypeError(f"{name} returns {type(x).__name__}; every_kth needs blocks from a tensor to a tensor")
        return x


class Segment:
    """Consecutive blocks as one checkpoint; takes over what calling each of them does."""

    def __init__(self, blocks: list[nn.Module], checkpoint: Callable[..., Any]):
        self.chain, self.checkpoint = Chain(blocks), checkpoint
        self.next = 0  # the block that the model should call next
        self.result: Callable[[], Tensor | None] = lambda: None
        self.rest: list[Any] = []  # the further arguments
        for number, block in enumerate(blocks):
            # Not its forward: the block's hooks around it would see values that are only passed on.
            block._call_impl = partial(self.call, number)

    def call(self, number: int, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """What the model's call of block `number` does."""
        rest = tree_leaves((args, kwargs))
        if number == 0:
            result = self.checkpoint(self.chain, x, *args, **kwargs)
            # Weakly: it is only compared, and must not stay in memory for that.
            self.next, self.result = 1, weakref.ref(result)
            self.rest = rest if len(self.chain.calls) > 1 else []
            return result
        if number != self.next or x is not self.result() or not same_things(rest, self.rest):
            raise RuntimeError(
                f"block {number} of a segment was not called straight after block {number - 1}, with its result and "
                "the same further arguments; every_kth needs that, every_block.recompute does not"
            )
        self.next += 1
        if self.next == len(self.chain.calls):
            self.rest = []  # keeps no tensor longer than needed
        return x


def same_things(these: list[Any], those: list[Any]) -> bool:
    """Whether arguments are the same tensors, and else equal."""
    return len(these) == len(those) and all(
        mine is its or not isinstance(mine, Tensor) and mine == its for mine, its in zip(these, those, strict=True)
    )
