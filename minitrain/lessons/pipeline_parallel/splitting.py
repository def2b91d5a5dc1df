"""The lesson of `minitrain.pipeline_parallel.splitting`: what its demo claims, and how that is measured."""

from __future__ import annotations

import torch

from minitrain.comm import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import layer_times, layers_of, split
from minitrain.planning.partition import partition


def demo(world: World) -> list[Claim]:
    """Cuts a GPT by measured times; the table shows that its stages, one after another, are the model."""
    model = GPT(GPTConfig(vocabulary=4096, positions=32, layers=6, hidden=32, heads=2), seed=0).to(world.device)
    stages = min(world.size + 1, len(layers_of(model)))  # also on one rank there is something to cut
    tokens = torch.arange(64, device=world.device).view(2, 32)
    times = [round(1e9 * seconds) for seconds in layer_times(model, tokens)]  # whole nanoseconds: sums do not round
    _, counts = partition(times, stages)
    parts = split(model, counts)
    x = tokens
    for part in parts:
        x = part(x)
    different = int((x != model(tokens)[0]).sum())
    rows = Rows("Narayanan et al. 2019, §3.1")
    what = "outputs of the stages, one after another, that differ from the model's"
    rows.add(what, "0", 0, different, "1", how="compared")
    return rows.claims()
