"""`Pipeline` against torch.distributed.pipelining: the same stages, GPipe, 1F1B and interleaved.

Ranks that share cores slow each other down, so on CPUs the work done is compared: CPU time of all threads of all ranks,
gloo's too. Wall-clock time counts where each rank has a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed import pipelining

from minitrain.benchmarks.compare import Comparison, interleaved
from minitrain.comm.world import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.full.actions import Schedule
from minitrain.pipeline_parallel.schedules import SCHEDULES

CPU = GPTConfig(positions=64, tied=False)
GPU = GPTConfig(vocabulary=32768, positions=1024, hidden=768, heads=12, tied=False)
THEIRS = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


def measure(
    world: World, config: GPTConfig | None = None, batch: int = 2, microbatches: int = 8, repeats: int = 25
) -> list[Comparison]:
    """Compare steps up to the gradients, for each schedule that both have.

    Args:
        world: This rank.
        config: Sizes of the GPT; None: small on CPUs, about GPT-2's on GPUs. Two chunks need two blocks per rank.
        batch: Samples in each micro-batch.
        microbatches: In a step, rounded up to a multiple of the ranks.
        repeats: Steps of each.
    """
    gpu = world.device.type == "cuda"
    if gpu and world.backend == "gloo":
        return []  # ranks that share a GPU: torch's pipelining does not stage messages through the CPU
    size = world.size
    blocks = max(8, 2 * size)
    config = config or replace(GPU if gpu else CPU, layers=blocks)
    microbatches = -(-microbatches // size) * size  # interleaved wants a multiple
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(config.vocabulary, (microbatches * batch, config.positions), generator=generator)
    tokens = tokens.to(world.device)
    rows = []
    for name in world.progress(THEIRS, f"pipelines on {size} ranks"):
        schedule = SCHEDULES[name](size, microbatches, 2 if name == "interleaved" else 1)
        ways = {
            "ours": _ours(world, config, schedule, tokens),
            "theirs": _theirs(world, config, schedule, tokens),
        }
        medians = interleaved(world, ways, repeats)
        what = f"a GPT's step, {name}, {microbatches} micro-batches, {size} ranks, "
        against, ours, theirs = f"torch's pipelining ({world.backend})", medians["ours"], medians["theirs"]
        target = None if gpu else 1.0
        rows.append(Comparison(what + "CPU time", ours.cpu, theirs.cpu, against, speed=False, target=target))
        rows.append(Comparison(what + "wall clock", ours.wall, theirs.wall, against))
    return rows


def _stages(world: World, config: GPTConfig, schedule: Schedule) -> dict[int, nn.Module]:
    model = GPT(config, seed=0).to(world.device)
    stages = splitting.split(model, splitting.evenly(model, schedule.stages))
    return {number: stages[number] for number in schedule.stages_of(world.rank)}


def _ours(world: World, config: GPTConfig, schedule: Schedule, tokens: Tensor) -> Callable[[], nn.ModuleList]:
    stages = _stages(world, config, schedule)
    pipeline = Pipeline(list(stages.values()), schedule, GPT(config, seed=0).loss)
    parts = tokens.chunk(schedule.microbatches)
    return partial(_step, nn.ModuleList(stages.values()), partial(pipeline.step, parts, parts))


def _theirs(world: World, config: GPTConfig, schedule: Schedule, tokens: Tensor) -> Callable[[], nn.ModuleList]:
    stages = _stages(world, config, schedule)
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.ERROR)
    wrapped = [
        pipelining.PipelineStage(stage, number, schedule.stages, world.device) for number, stage in stages.items()
    ]
    several = schedule.name == "interleaved"
    running = THEIRS[schedule.name](
        wrapped if several else wrapped[0],  # type: ignore[arg-type]
        schedule.microbatches,
        loss_fn=GPT(config, seed=0).loss,
    )
    inputs = (tokens,) if 0 in stages else ()
    targets = {"target": tokens, "losses": []} if schedule.stages - 1 in stages else {}
    return partial(_step, nn.ModuleList(stages.values()), partial(running.step, *inputs, **targets))


def _step(stages: nn.ModuleList, step: Callable[[], object]) -> nn.ModuleList:
    """Gradients of one step, and nothing else; returns the stages, with their gradients."""
    stages.zero_grad()
    step()
    return stages
