"""`minitrain.recomputation.checkpoint` for the blocks of any model, with a `checkpoint` of choice, and checks.

**Source.** Besides Chen et al. 2016: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
models", §5, for the transformer. Older: Griewank & Walther 2000, "Algorithm 799: revolve".
**Sent.** A block that communicates in its forward (tensor-parallel layers do) communicates again when it is computed
again, on all ranks in the same order.
**Cost.** `minitrain.costs.recomputation`: bytes by `gpt_kept` and `gpt_peak`; the blocks' forward once more, which is a
third of a step (`full_share`). With `early_stop.checkpoint` a block's last product is left out, a third of that third.
Also called activation checkpointing, gradient checkpointing, rematerialization.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

from minitrain.models.gpt import GPT
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full.checkpoint import checkpoint


def recompute(blocks: Iterable[nn.Module], checkpoint: Callable[..., Any] = checkpoint) -> None:
    """Have each block keep its inputs only, and be computed again in backward. Works in place; names stay as they are.

    Only `block.forward` is replaced, so a block's hooks stay around it and are called once: ZeRO-3, for which each
    block is a unit, gathers a block's parameters before its backward, which computes it again, and frees them after.
    Hooks of modules inside the block are called each time. Hooks on parameters, as data parallelism has them, are
    called once in backward as always. Only a parameter shared by several blocks gets a separate addition from each, so
    that its hook is called several times; `early_stop.checkpoint` avoids that, and is also required by a schedule that
    asks for gradients of inputs and of weights separately (zero bubble). `del block.forward` undoes it all.

    Args:
        blocks: Modules whose forward does the same each time, with any arguments and results. For example,
            `gpt.blocks`.
        checkpoint: Calls a function and keeps its arguments: ours, that of `early_stop`, or torch's. Options are bound
            to it, as in `partial(checkpoint, preserve_random_state=False)`.

    Raises:
        ValueError: There is no block, or one of them is recomputed already.

    Source: Chen et al. 2016, §4.

    Examples:
        >>> from minitrain.recomputation import recompute
        >>> recompute(model.blocks)
    """
    chosen = list(dict.fromkeys(blocks))  # a block that the model has twice is still one
    check(chosen)
    for block in chosen:
        # A partial over a bound method: a deep copy of the block then computes with the copy's own parameters.
        block.forward = partial(checkpoint, block.forward)


def check(blocks: list[nn.Module]) -> None:
    """Raise where blocks cannot be made to be recomputed."""
    if not blocks:
        raise ValueError("blocks is empty, and nothing would be recomputed; give the modules, such as gpt.blocks")
    for number, block in enumerate(blocks):
        # A method of the class, unless something has replaced it on the block itself.
        if "forward" in vars(block):
            raise ValueError(
                f"blocks[{number}] ({type(block).__name__}) is recomputed already, or its forward was replaced by "
                "something else; choose every_block or selective once, on a model as it was built"
            )


def every_block(gpt: GPT) -> None:
    recompute(gpt.blocks)


def every_block_early(gpt: GPT) -> None:
    """The same, but leave out the end of a block's second forward."""
    recompute(gpt.blocks, early_stop.checkpoint)


def every_block_without_random_state(gpt: GPT) -> None:
    """Break it: dropout drops other elements the second time."""
    recompute(gpt.blocks, partial(checkpoint, preserve_random_state=False))
