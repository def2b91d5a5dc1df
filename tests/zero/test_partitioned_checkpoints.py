"""Inside tensor parallelism, for which they are made: a block that communicates is computed again on all ranks."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block
from minitrain.tensor_parallel.attention import ParallelAttention, ParallelMLP
from minitrain.zero.partitioned_checkpoints import partition


def gradients(world, partitioned: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(GPTConfig(positions=6, hidden=12, heads=6, attention="plain")) for _ in range(2)))
    for block in blocks:
        block.attention, block.mlp = ParallelAttention(block.attention), ParallelMLP(block.mlp)
    x = torch.randn(2, 5, 12, requires_grad=True)
    if partitioned:
        partition(blocks)
    blocks(x).square().sum().backward()
    return [each.grad for each in (x, *blocks.parameters())]


def compare(world):
    torch.testing.assert_close(gradients(world, True), gradients(world, False), rtol=0, atol=0)


def test_blocks_of_tensor_parallelism(ranks):
    ranks(3).run(compare)
