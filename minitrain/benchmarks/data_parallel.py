"""`DataParallel` against torch's DDP: a step of the GPT, as CPU time of all ranks together and by the wall's clock.

Ranks that share cores slow each other down, so on CPUs the work done is compared: CPU time of all threads of all ranks,
gloo's too. Wall-clock time counts where each rank has a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.data_parallel import DataParallel
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

CPU = GPTConfig()  # 0.8 M parameters, 3.2 MiB of gradients
GPU = GPTConfig(vocabulary=32768, positions=1024, layers=12, hidden=768, heads=12)  # about GPT-2: 110 M, 440 MB


def measure(world: World, config: GPTConfig | None = None, batch: int = 8, repeats: int = 30) -> list[Comparison]:
    """Compare steps with one bucket and with several, each with the same bucket size on both sides.

    Args:
        world: This rank.
        config: Sizes of the GPT; None: small on CPUs, GPT-2's on GPUs.
        batch: Samples in each rank's micro-batch.
        repeats: Steps of each.
    """
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    gradients = 4 * GPT(config, seed=0).parameter_count() / 2**20
    rows = []
    for buckets in world.progress((1, 4), f"data parallelism on {world.size} ranks"):
        megabytes = 1.01 * gradients / buckets
        ways = {"ours": _step(world, config, batch, megabytes, DataParallel)}
        ways["theirs"] = _step(world, config, batch, megabytes, _ddp)
        medians = interleaved(world, ways, repeats, warmups=4)
        what = f"a GPT's step, buckets of {megabytes:.1f} MiB, {world.size} ranks, "
        against, ours, theirs = f"DDP ({world.backend})", medians["ours"], medians["theirs"]
        target = None if gpu else 1.02
        rows.append(Comparison(what + "CPU time", ours.cpu, theirs.cpu, against, speed=False, target=target))
        rows.append(Comparison(what + "wall clock", ours.wall, theirs.wall, against))
    return rows


def _ddp(module: nn.Module, *, bucket_megabytes: float) -> nn.Module:
    return DistributedDataParallel(module, bucket_cap_mb=bucket_megabytes)  # type: ignore[arg-type]  # a float will do


def _step(
    world: World, config: GPTConfig, batch: int, megabytes: float, wrap: Callable[..., nn.Module]
) -> Callable[[], None]:
    """A training step: forward, backward, means over ranks, AdamW."""
    model = wrap(GPT(config, seed=0).to(world.device), bucket_megabytes=megabytes)
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(world.rank)
    shape = (batch, config.positions)
    tokens = torch.randint(config.vocabulary, shape, generator=generator).to(world.device)
    return partial(_train, model, optimizer, tokens)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor) -> None:
    _, loss = model(tokens, tokens)
    loss.backward()
    if isinstance(model, DataParallel):
        model.synchronize()
    optimizer.step()
    optimizer.zero_grad()
