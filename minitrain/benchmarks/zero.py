"""The stages of ZeRO against torch's: ZeroRedundancyOptimizer after DDP, FSDP2 without and with resharding, and HSDP.

A step of the GPT, AdamW included. As with data parallelism, the work done is compared on CPUs: CPU time of all
threads of all ranks together. Torch's own collectives carry both sides. (The ring of chapter 01 in their place makes
ours 2 to 15 percent more expensive here: lines are small, and gloo's threads need no Python.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.benchmarks.data_parallel import CPU, GPU
from minitrain.comm.mesh import axes
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.zero import HybridZero3, Zero1, Zero2, Zero3
from minitrain.zero.full.sharded import Sharded

OPTIMIZER = torch.optim.AdamW
Step = Callable[[Tensor], None]


def measure(world: World, config: GPTConfig | None = None, batch: int = 8, repeats: int = 15) -> list[Comparison]:
    """Compare a step of each stage with what torch has.

    Args:
        world: This rank.
        config: Sizes of the GPT; None: small on CPUs, GPT-2's on GPUs.
        batch: Samples in each rank's micro-batch.
        repeats: Steps of each.
    """
    gpu = world.device.type == "cuda"
    config = config or (GPU if gpu else CPU)
    ways: dict[int | str, tuple[str, Callable[[GPT], Step], float]] = {
        1: ("ZeroRedundancyOptimizer", _zero_redundancy, 1.02),
        2: ("FSDP2 without resharding", partial(_fsdp, reshard=False), 0.95),
        3: ("FSDP2 with resharding", partial(_fsdp, reshard=True), 0.95),
    }
    mesh = None
    if world.size >= 4 and world.size % 2 == 0:
        mesh = axes(node=2, local=world.size // 2)
        ways["3 in 2 nodes"] = ("FSDP2 on a 2-D mesh", partial(_fsdp, reshard=True, mesh=mesh), 0.95)
    rows = []
    for stage in world.progress(ways, f"ZeRO on {world.size} ranks", total=len(ways)):
        against, theirs, target = ways[stage]
        tokens = _tokens(world, config, batch)
        pair = {
            "ours": partial(_ours(stage, _gpt(world, config), mesh), tokens),
            "theirs": partial(theirs(_gpt(world, config)), tokens),
        }
        medians = interleaved(world, pair, repeats, warmups=4)
        mine, its = medians["ours"], medians["theirs"]
        what = f"a GPT's step, ZeRO stage {stage}, {world.size} ranks, "
        against = f"{against} ({world.backend})"
        goal = None if gpu else target
        rows.append(Comparison(what + "CPU time", mine.cpu, its.cpu, against, speed=False, target=goal))
        rows.append(Comparison(what + "wall clock", mine.wall, its.wall, against))
    return rows


def _gpt(world: World, config: GPTConfig) -> GPT:
    return GPT(config, seed=0).to(world.device)


def _tokens(world: World, config: GPTConfig, batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(world.rank)
    return torch.randint(config.vocabulary, (batch, config.positions), generator=generator).to(world.device)


def _ours(stage: int | str, module: GPT, mesh: DeviceMesh | None = None) -> Step:
    # Named when it is used: a stage may be measured where another is not there.
    stages: dict[int | str, type[Sharded]] = {1: Zero1, 2: Zero2, 3: Zero3}
    if stage in stages:
        model = stages[stage](module, OPTIMIZER)
    else:
        assert mesh is not None
        model = HybridZero3(module, OPTIMIZER, mesh.get_group("local"), replicas=mesh.get_group("node"))

    def step(tokens: Tensor) -> None:
        _, loss = model(tokens, tokens)
        loss.backward()
        model.synchronize()
        model.step()
        model.zero_grad()

    return step


def _zero_redundancy(module: GPT) -> Step:
    optimizer = ZeroRedundancyOptimizer(module.parameters(), OPTIMIZER)
    return _plain(DistributedDataParallel(module), optimizer)


def _fsdp(module: GPT, reshard: bool, mesh: DeviceMesh | None = None) -> Step:
    for block in module.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard)
    return _plain(module, OPTIMIZER(module.parameters()))


def _plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(tokens: Tensor) -> None:
        _, loss = model(tokens, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
