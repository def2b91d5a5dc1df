"""Shared by the demos of this chapter: a small GPT in four ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.models import counter_rng
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.sequence_parallel.megatron import parallelize
from minitrain.tensor_parallel.dropout_rng import place_dropout
from minitrain.tensor_parallel.full.parallelize import parallelize as tensor_parallelize

PAPER, RING = "Korthikanti et al. 2022, §4.2.2", "Patarasuk & Yuan 2009"
VOCABULARY, BATCH, HEAD, DROPOUT = 61, 2, 8, 0.1

Way = Literal["one device", "chapter 08", "input kept", "gathered again"]
# The two ways of this chapter, and their `keep_gathered`.
OURS: dict[Way, bool] = {"input kept": True, "gathered again": False}


@dataclass(frozen=True)
class Trial:
    """A small GPT, to be run in four ways; `heads`, and tokens of each sequence, `shard`, are those of each rank."""

    world: World
    layers: int
    heads: int
    shard: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """b, s, h: in the order in which `costs` takes them."""
        return BATCH, self.shard * self.world.size, HEAD * self.heads * self.world.size

    def gpt(self, way: Way, dtype: torch.dtype, **how: Any) -> GPT:
        """The GPT, with the same weights each time, in one of the ways; `how` goes to `parallelize`."""
        (_, seq, hidden), heads = self.sizes, self.heads * self.world.size
        config = GPTConfig(VOCABULARY, seq, self.layers, hidden, heads, dropout=DROPOUT, attention="plain")
        gpt = GPT(config, seed=0).to(self.world.device, dtype)
        if way in OURS:
            parallelize(gpt, keep_gathered=OURS[way], **how)
        elif way == "chapter 08":
            tensor_parallelize(gpt, **how)
        else:
            place_dropout(gpt)
        counter_rng.set_position(seed=0, step=0)
        return gpt

    def tokens(self, step: int = 0) -> tuple[Tensor, Tensor]:
        """The inputs and targets of a step, the same on every rank; one target is ignored."""
        generator, (batch, seq, _) = torch.Generator().manual_seed(step), self.sizes
        inputs, targets = torch.randint(VOCABULARY, (2, batch, seq), generator=generator).to(self.world.device)
        targets[0, 0] = -100
        return inputs, targets

    def hidden_states(self, way: Way, dtype: torch.dtype) -> Tensor:
        """The input of a block in one of the ways: all tokens, or this rank's."""
        drawn = torch.randn(self.sizes, generator=torch.Generator().manual_seed(1))
        drawn = own(self.world, drawn) if way in OURS else drawn
        return drawn.to(self.world.device, dtype).requires_grad_()


def own(world: World, whole: Tensor) -> Tensor:
    """This rank's tokens of `[batch, seq, …]`."""
    return whole.tensor_split(world.size, 1)[world.rank].contiguous()
