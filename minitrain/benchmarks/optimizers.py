"""Steps of the full forms of Adafactor and Muon against torch's own, on all parameters of a GPT.

Muon steps the matrices of the blocks, and AdamW the rest; torch needs two optimizers for that. Nothing is sent; each
rank takes its own step, and the CPU time of all is compared. (AdamW is torch's in this project, and torch has no LAMB
or LARS.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.benchmarks.recomputation import CPU, GPU
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers import Adafactor, Muon


def measure(world: World, config: GPTConfig | None = None, repeats: int = 25) -> list[Comparison]:
    """Compare steps on the same gradients.

    Args:
        world: This rank.
        config: Sizes of the GPT; None: small on CPUs, GPT-2's on GPUs.
        repeats: Steps of each.
    """
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    ways = {
        "Adafactor": (_ours_adafactor, _torchs_adafactor, "torch.optim.Adafactor"),
        "Muon": (_ours_muon, _torchs_muon, "torch.optim.Muon and AdamW"),
    }
    rows = []
    for name, (ours, theirs, against) in ways.items():
        pair = {"ours": ours(_model(world, config)), "theirs": theirs(_model(world, config))}
        medians = interleaved(world, pair, repeats, warmups=4)
        what = f"a step of {name}, a GPT, {world.size} ranks, "
        mine, its = medians["ours"], medians["theirs"]
        target = None if gpu else 1.05
        rows.append(Comparison(what + "CPU time", mine.cpu, its.cpu, against, speed=False, target=target))
        rows.append(Comparison(what + "wall clock", mine.wall, its.wall, against))
    return rows


def _model(world: World, config: GPTConfig) -> GPT:
    model = GPT(config, seed=0).to(world.device)
    generator = torch.Generator().manual_seed(world.rank)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(world.device)
    return model


def _ours_adafactor(model: nn.Module) -> Callable[[], object]:
    return Adafactor(model.parameters()).step


def _torchs_adafactor(model: nn.Module) -> Callable[[], object]:
    return torch.optim.Adafactor(model.parameters()).step


def _split(model: GPT) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    matrices = [parameter for parameter in model.blocks.parameters() if parameter.dim() == 2]
    known = set(matrices)
    return matrices, [parameter for parameter in model.parameters() if parameter not in known]


def _ours_muon(model: GPT) -> Callable[[], object]:
    matrices, others = _split(model)
    return Muon([{"params": matrices}, {"params": others, "use_muon": False}]).step


def _torchs_muon(model: GPT) -> Callable[[], object]:
    matrices, others = _split(model)
    muon = torch.optim.Muon(matrices)
    adamw = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> None:
        muon.step()
        adamw.step()

    return step
