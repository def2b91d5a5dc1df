"""Blocks of the GPT over several ranks against torch's DTensor: forward and backward, CPU time and wall-clock time.

Ranks that share cores slow each other down, so on CPUs the work done is compared: CPU time of all threads of all ranks,
gloo's too. Wall-clock time counts where each rank has a GPU. Norms, residuals and the core of attention are the same
code on both sides; the projections differ, and so do the messages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block
from minitrain.sequence_parallel.full.embedding_and_head import NormOnSequence
from minitrain.sequence_parallel.full.linear import ColumnFromSequence, RowToSequence
from minitrain.tensor_parallel import ColumnParallelLinear, ParallelAttention, ParallelMLP, RowParallelLinear

CPU = GPTConfig(layers=2, hidden=256, heads=8)
GPU = GPTConfig(positions=2048, layers=4, hidden=4096, heads=32)

Wrap = Callable[[World, nn.Sequential], nn.Module]


class Way(NamedTuple):
    """One thing that both sides do.

    Attributes:
        name: For the table.
        ours: Splits blocks over all ranks. The result takes the whole input, and returns the whole output or this
            rank's tokens of it.
        theirs: The same with what a user would pick instead.
        target: The largest acceptable ratio of CPU times on two ranks.
    """

    name: str
    ours: Wrap
    theirs: Wrap
    target: float


def tensor_parallel(world: World, blocks: nn.Sequential) -> nn.Module:
    """Chapter 08."""
    for block in blocks:
        assert isinstance(block, Block)
        block.attention = ParallelAttention(block.attention)
        block.mlp = ParallelMLP(block.mlp)
    return blocks


def with_dtensor(world: World, blocks: nn.Sequential) -> nn.Module:
    """DTensor's plan of its tutorial; the input of attention is made a DTensor once, for one all-reduce backward."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    plan: dict[str, ParallelStyle] = {
        "attention": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate()),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for block in blocks:
        parallelize_module(block, mesh, plan)
    return blocks


class OwnTokens(nn.Module):
    """Blocks that take and give sequence shards: of the whole input each rank takes its own tokens."""

    def __init__(self, world: World, blocks: nn.Sequential):
        super().__init__()
        self.rank, self.ranks, self.blocks = world.rank, world.size, blocks

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x.tensor_split(self.ranks, 1)[self.rank].contiguous())


def sequence_parallel(world: World, blocks: nn.Sequential) -> nn.Module:
    """Chapter 09, the gathered inputs kept, as DTensor keeps them."""
    tensor_parallel(world, blocks)
    for name, part in list(blocks.named_modules()):
        if type(part) is ColumnParallelLinear:
            blocks.set_submodule(name, ColumnFromSequence.of(part, keep_gathered=True))
        elif type(part) is RowParallelLinear:
            blocks.set_submodule(name, RowToSequence.of(part))
    for block in blocks:
        for name in ("attention_norm", "mlp_norm"):
            block.set_submodule(name, NormOnSequence(block.get_submodule(name), block.attention.output))  # type: ignore
    return OwnTokens(world, blocks)


def with_dtensor_on_shards(world: World, blocks: nn.Sequential) -> nn.Module:
    """DTensor's plan of its tutorial for sequence parallelism."""
    mesh = init_device_mesh(world.device.type, (world.size,))
    gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": gathered,
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": gathered,
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in blocks:
        parallelize_module(block, mesh, plan)
    return OwnTokens(world, blocks)


WAYS = [
    Way("tensor parallelism", tensor_parallel, with_dtensor, target=0.95),
    Way("with sequence parallelism", sequence_parallel, with_dtensor_on_shards, target=1.0),
]


def measure(world: World, config: GPTConfig | None = None, batch: int = 4, repeats: int = 15) -> list[Comparison]:
    """Compare forward and backward of all blocks.

    Args:
        world: This rank.
        config: Sizes of the blocks; None: small on CPUs, those of a model of 7 billion parameters on GPUs.
        batch: Sequences, the same on all ranks.
        repeats: Runs of each.
    """
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    rows = []
    for way in world.progress(WAYS, f"tensor parallelism on {world.size} ranks"):
        torch.manual_seed(0)  # the same weights on all ranks
        blocks = nn.Sequential(*(Block(config) for _ in range(config.layers))).to(world.device)
        steps = {
            "ours": _step(world, config, batch, way.ours(world, copy.deepcopy(blocks))),
            "theirs": _step(world, config, batch, way.theirs(world, blocks)),
        }
        medians = interleaved(world, steps, repeats, warmups=4)
        what = f"{way.name}, {config.layers} blocks of width {config.hidden}, {world.size} ranks, "
        against, ours, theirs = f"DTensor ({world.backend})", medians["ours"], medians["theirs"]
        target = way.target if world.size == 2 and not gpu else None
        rows.append(Comparison(what + "CPU time", ours.cpu, theirs.cpu, against, speed=False, target=target))
        rows.append(Comparison(what + "wall clock", ours.wall, theirs.wall, against))
    return rows


def _step(world: World, config: GPTConfig, batch: int, module: nn.Module) -> Callable[[], None]:
    """Forward and backward on the same input on all ranks."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, config.positions, config.hidden, generator=generator).to(world.device).requires_grad_()
    return partial(_forward_and_backward, module, x)


def _forward_and_backward(module: nn.Module, x: Tensor) -> None:
    module.zero_grad()
    x.grad = None
    module(x).square().mean().backward()
