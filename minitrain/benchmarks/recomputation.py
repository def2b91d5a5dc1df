"""Our two checkpoints against torch's two: a step of the GPT with every block recomputed.

Nothing is sent; each rank takes its own step. `early_stop` is compared with the faster of torch's two. The one that
makes a second graph does the same operations as torch's `use_reentrant=True`, and is compared with that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full import every_block as full
from minitrain.recomputation.full.checkpoint import checkpoint

CPU = GPTConfig()
GPU = GPTConfig(vocabulary=32768, positions=1024, layers=12, hidden=768, heads=12)  # about GPT-2
TORCHS = {
    f"use_reentrant={kind}": partial(torch.utils.checkpoint.checkpoint, use_reentrant=kind) for kind in (True, False)
}


def measure(world: World, config: GPTConfig | None = None, batch: int = 8, repeats: int = 15) -> list[Comparison]:
    """Compare steps in which each block is recomputed."""
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    checkpoints = {"early": early_stop.checkpoint, "whole": checkpoint, **TORCHS}
    ways = {name: _step(world, config, batch, each) for name, each in checkpoints.items()}
    medians = interleaved(world, ways, repeats)
    faster = min(TORCHS, key=lambda name: medians[name].cpu)
    rows = []
    for what, name, against in (("stopping early", "early", faster), ("wholly", "whole", "use_reentrant=True")):
        what = f"a GPT's step, blocks recomputed {what}, {world.size} ranks"
        target = 1.0 if name == "early" and not gpu else None
        rows += by_both_clocks(what, medians[name], medians[against], f"torch's, {against}", target)
    return rows


def _step(world: World, config: GPTConfig, batch: int, checkpoint: Callable[..., Any]) -> Callable[[], None]:
    """Forward and backward; the optimizer, which is the same on both sides, is left out."""
    model = GPT(config, seed=0).to(world.device)
    full.recompute(model.blocks, checkpoint)
    generator = torch.Generator().manual_seed(world.rank)
    tokens = torch.randint(config.vocabulary, (batch, config.positions), generator=generator).to(world.device)
    return partial(_train, model, tokens)


def _train(model: GPT, tokens: Tensor) -> None:
    model.zero_grad()
    _, loss = model(tokens, tokens)
    assert loss is not None
    loss.backward()
