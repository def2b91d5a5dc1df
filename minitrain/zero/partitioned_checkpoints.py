"""Partitioned activation checkpoints (P_a of ZeRO-R): each tensor-parallel rank keeps a part of a block's input.

**Idea.** Tensor parallelism divides what is inside a block, but the block's input is the same on all t ranks. With
recomputation these inputs are all that is kept, t times over. So each rank keeps 1/t of each, and the ranks gather it
when backward comes to the block. The parts may also wait on the host (P_a+cpu).
**Source.** Rajbhandari et al. 2020, "ZeRO", §6.1 and §8.
**Sent.** In backward an all-gather of `[batch, seq, hidden]` per block, a twelfth of what the six all-reduces of a
recomputed block send. With the host, 1/t of it goes there in forward, and back in backward.
**Cost.** L blocks keep L·bsh/t elements, on the device or on the host, and the block that is computed again its whole
input. Blocks draw no random numbers here: `minitrain.recomputation.checkpoint` shows how to draw the same ones twice.
Also called `partition_activations` and `cpu_checkpointing` (DeepSpeed), `distribute_saved_activations` (Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm.messages import Group, all_gather, rank_and_size


class Partitioned(torch.autograd.Function):
    """A call of which autograd keeps this rank's part of the input; backward gathers it, and makes the call again."""

    @staticmethod
    def forward(ctx: Any, block: Callable[[Tensor], Tensor], group: Group, host: bool, x: Tensor) -> Tensor:
        rank, ranks = rank_and_size(group)
        # Zeros at the end, so that the ranks divide it.
        flat = nn.functional.pad(x.detach().flatten(), (0, -x.numel() % ranks))  # [padded]
        part = flat.chunk(ranks)[rank]  # [padded / ranks]
        # A copy, because a view would keep all of the input.
        part = part.to("cpu", copy=True) if host else part.clone()
        ctx.save_for_backward(part)
        ctx.block, ctx.group, ctx.shape = block, group, x.shape
        random = torch.get_rng_state()
        # Autograd is off inside a Function's forward, so it keeps nothing of this call.
        y = block(x)
        # Only on the CPU can this be seen at once; a GPU's random numbers are as wrong.
        assert torch.equal(random, torch.get_rng_state()), "a block draws random numbers, and would draw others again"
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (part,), (gradient,) = ctx.saved_tensors, gradients
        rank, ranks = rank_and_size(ctx.group)
        flat = gradient.new_empty(ranks * len(part))  # [padded]
        # This rank's part goes where the others expect it, from the host if it was there.
        mine = flat.chunk(ranks)[rank].copy_(part)
        # Each rank brings its part, and all get the whole input.
        all_gather(mine, ctx.group, into=flat).wait()
        x = flat[: ctx.shape.numel()].view(ctx.shape).requires_grad_()  # [batch, seq, hidden]
        with torch.enable_grad():
            y = ctx.block(x)
        # The block's parameters get their gradients here, and the input its own.
        y.backward(gradient)
        return None, None, None, x.grad


def checkpoint(block: Callable[[Tensor], Tensor], x: Tensor, group: Group = None, host: bool = False) -> Tensor:
    """`block(x)`, of which autograd keeps 1/t of x on this rank, and nothing else.

    Args:
        block: What is computed again; all ranks of the group call it with the same x.
        x: Its input. It requires a gradient, because otherwise backward never comes here.
        group: The tensor-parallel ranks.
        host: Whether the part waits in the host's memory.
    """
    if not torch.is_grad_enabled():
        return block(x)
    assert x.requires_grad, "the input requires no gradient, so the block's parameters would get none"
    # The second call would round otherwise, or change BatchNorm's statistics a second time.
    assert not torch.is_autocast_enabled(x.device.type), "the second call would be without autocast"
    module = getattr(block, "__self__", block)
    assert not isinstance(module, nn.Module) or not list(module.buffers()), "the second call would change buffers again"
    return Partitioned.apply(block, group, host, x)


def partition(blocks: Iterable[nn.Module], group: Group = None, host: bool = False) -> None:
    """Have each block keep this rank's part of its input only."""
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, group=group, host=host)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
