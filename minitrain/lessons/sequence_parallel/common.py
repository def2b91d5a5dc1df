"""Shared by the demos of this chapter: a small GPT in four ways."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.tensor_parallel.parallelize import parallelize as tensor_parallelize

PAPER, RING = "Korthikanti et al. 2022, §4.2.2", "Patarasuk & Yuan 2009"
VOCABULARY, BATCH, HEAD = 61, 2, 8

Parallelize = Callable[..., Any]
Way = Literal["one device", "chapter 08", "input kept", "gathered again"]
OURS: dict[Way, bool] = {"input kept": True, "gathered again": False}
"""The two ways of this chapter, and their `keep_gathered`."""


@dataclass(frozen=True)
class Trial:
    """A small GPT, to be run in four ways. The ranks divide all its sizes except for the vocabulary.

    Attributes:
        world: This rank.
        layers: Blocks, L.
        heads: Attention heads of each rank.
        shard: Tokens of each sequence on each rank.
    """

    world: World
    layers: int
    heads: int
    shard: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """b, s, h: in the order in which `costs` takes them."""
        return BATCH, self.shard * self.world.size, HEAD * self.heads * self.world.size

    @property
    def all_heads(self) -> int:
        """a, of all ranks together."""
        return self.heads * self.world.size

    def gpt(
        self, way: Way, parallelize: Parallelize, dtype: torch.dtype = torch.float32, dropout: float = 0.0, **how: Any
    ) -> GPT:
        """The GPT, with the same weights each time, in one of the ways; `how` goes to `parallelize`."""
        _, seq, hidden = self.sizes
        config = GPTConfig(VOCABULARY, seq, self.layers, hidden, self.all_heads, dropout=dropout, attention="plain")
        gpt = GPT(config, seed=0).to(self.world.device, dtype)
        if way == "chapter 08":
            tensor_parallelize(gpt, **how)
        elif way != "one device":
            parallelize(gpt, keep_gathered=OURS[way], **how)
        return gpt

    def tokens(self, step: int = 0) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a step, the same on every rank; one target is ignored."""
        generator, (batch, seq, _) = torch.Generator().manual_seed(step), self.sizes
        inputs, targets = torch.randint(VOCABULARY, (2, batch, seq), generator=generator).to(self.world.device)
        targets[0, 0] = -100
        return inputs, targets

    def hidden_states(self, way: Way, dtype: torch.dtype = torch.float32) -> Tensor:
        """The input of a block in one of the ways: all tokens, or this rank's."""
        batch, seq, hidden = self.sizes
        drawn = torch.randn(batch, seq, hidden, generator=torch.Generator().manual_seed(1))
        if way in OURS:
            drawn = own(self.world, drawn)
        return drawn.to(self.world.device, dtype).requires_grad_()


def own(world: World, whole: Tensor) -> Tensor:
    """This rank's tokens of `[batch, seq, …]`."""
    return whole.tensor_split(world.size, 1)[world.rank].contiguous()
