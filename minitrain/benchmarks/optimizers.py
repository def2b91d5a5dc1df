"""Steps of the full forms of Adafactor and Muon against torch's own, on all parameters of a GPT.

Muon steps the matrices of the blocks, and AdamW the rest; torch needs two optimizers for that. Nothing is sent; each
rank takes its own step. (AdamW is torch's in this project, and torch has no LAMB or LARS.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from minitrain.benchmarks.compare import Comparison, by_both_clocks, interleaved
from minitrain.benchmarks.recomputation import CPU, GPU
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers import Adafactor, Muon


def measure(world: World, config: GPTConfig | None = None, repeats: int = 25) -> list[Comparison]:
    """Compare steps on the same gradients."""
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    pairs = {
        "Adafactor": (_adafactor(world, config), "torch.optim.Adafactor"),
        "Muon": (_muon(world, config), "torch.optim.Muon and AdamW"),
    }
    rows = []
    for name, (ways, against) in pairs.items():
        medians = interleaved(world, dict(zip(("ours", "theirs"), ways, strict=True)), repeats)
        what = f"a step of {name}, a GPT, {world.size} ranks"
        rows += by_both_clocks(what, medians["ours"], medians["theirs"], against, None if gpu else 1.05)
    return rows


def _model(world: World, config: GPTConfig) -> GPT:
    model = GPT(config, seed=0).to(world.device)
    generator = torch.Generator().manual_seed(world.rank)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(world.device)
    return model


def _adafactor(world: World, config: GPTConfig) -> list[Callable[[], object]]:
    return [kind(_model(world, config).parameters()).step for kind in (Adafactor, torch.optim.Adafactor)]


def _muon(world: World, config: GPTConfig) -> list[Callable[[], object]]:
    parts = []
    for model in (_model(world, config), _model(world, config)):
        matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
        known = set(matrices)
        parts.append((matrices, [parameter for parameter in model.parameters() if parameter not in known]))
    (ours, our_others), (theirs, their_others) = parts
    one = Muon([{"params": ours}, {"params": our_others, "use_muon": False}])
    two = torch.optim.Muon(theirs), torch.optim.AdamW(their_others, betas=(0.9, 0.95), weight_decay=0.1)
    return [one.step, lambda: [each.step() for each in two]]
