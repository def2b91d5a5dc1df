"""Full recomputation: of every block only the input is kept, and backward computes the block again.

**Idea.** What a block keeps for backward is about 16 times its input, and follows from its input. So forward keeps the
input. When backward comes to the block, it calls the block once more, now keeping everything, and goes backward through
that call.

**Source.** Chen et al. 2016, "Training deep nets with sublinear memory cost", §4.
**Cost.** Forward once more, a third of a step. L blocks keep L·bsh elements in place of 16·L·bsh and more; in backward,
one block's 16·bsh as well.
The full forms, `minitrain.recomputation.full.checkpoint` and `.every_block`, add any arguments and results, inputs
without a gradient, buffers, and checks; `.early_stop` is faster.
Also called activation checkpointing, gradient checkpointing, rematerialization, remat (JAX).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn


class Recomputed(torch.autograd.Function):
    """A call of which autograd keeps only the inputs; backward makes the call again."""

    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(*inputs)
        # Dropout must drop the same elements in both calls, so the random state is kept, too.
        ctx.gpus = [each.device for each in inputs[:1] if each.is_cuda]
        ctx.random = torch.get_rng_state(), *map(torch.cuda.get_rng_state, ctx.gpus)
        # The second call must round as the first one does.
        kind = inputs[0].device.type
        ctx.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        # Autograd is off inside a Function's forward, so it keeps nothing of this call.
        return function(*inputs)

    @staticmethod
    def backward(ctx, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Detached: the backward below ends at the inputs, and the outer one goes on from there.
        inputs = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
        # After the second call, random numbers go on as if it had not been made.
        with torch.random.fork_rng(ctx.gpus), torch.enable_grad(), torch.autocast(*ctx.autocast):
            torch.set_rng_state(ctx.random[0])
            for gpu, state in zip(ctx.gpus, ctx.random[1:], strict=True):
                torch.cuda.set_rng_state(state, gpu)
            output = ctx.function(*inputs)
        # The function's parameters get their gradients here, and the inputs theirs.
        output.backward(*gradient)
        return None, *(each.grad for each in inputs)


def checkpoint(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """`function(*inputs)`, of which autograd keeps the inputs and nothing else.

    **Trap: an input must require a gradient.** Autograd sees only the inputs, not the
    parameters. If no input requires a gradient, backward never comes here, and nothing is learned.
    """
    if not torch.is_grad_enabled():
        return function(*inputs)
    assert any(each.requires_grad for each in inputs), "no input requires a gradient: use the full form"
    # BatchNorm would count the batch twice.
    module = getattr(function, "__self__", function)
    assert not isinstance(module, nn.Module) or not list(module.buffers()), "a block has buffers"
    return Recomputed.apply(function, *inputs)


def recompute(blocks: Iterable[nn.Module]) -> None:
    """Have each block, of `gpt.blocks` for example, keep only its input."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
