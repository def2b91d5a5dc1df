"""A small GPT that the lessons of this chapter train, in several precisions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm import World
from minitrain.comm.messages import all_reduce
from minitrain.data.text import Samples, Text
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

SEQ, HIDDEN, VOCABULARY = 32, 32, 256


class Loss(nn.Module):
    """A GPT as a module whose result is the loss, in float32 whatever the GPT is in."""

    def __init__(self, device: torch.device, seed: int = 0, layers: int = 2):
        super().__init__()
        config = GPTConfig(VOCABULARY, SEQ, layers, HIDDEN, heads=2, attention="plain")
        self.gpt = GPT(config, seed=seed).to(device)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        logits, _ = self.gpt(tokens)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core in this block: the models are so small that several threads would only wait for each other.

    Where other programs use the cores, waiting threads made a demo on one rank ten times as slow.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def batch(world: World, step: int, rank: int | None = None, samples: int = 4) -> tuple[Tensor, Tensor]:
    """A rank's part of a step's batch of real text."""
    rank = world.rank if rank is None else rank
    tokens, targets = Samples(Text.load().training, SEQ).batch(step, samples * world.size, rank, world.size)
    return tokens.to(world.device), targets.to(world.device)


def over_ranks(x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
    """A copy, reduced over all ranks."""
    result = x.detach().clone()
    all_reduce(result, op=op).wait()
    return result


def differing(x: Tensor) -> int:
    """Elements that are not the same on all ranks."""
    return int(torch.ne(over_ranks(x, dist.ReduceOp.MAX), over_ranks(x, dist.ReduceOp.MIN)).sum())
