"""The lesson of `minitrain.pipeline_parallel.splitting`: what its demo claims, and how that is measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise

import torch

from minitrain.comm import World
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import layers_of, split
from minitrain.planning.partition import partition


def demo(world: World) -> list[Claim]:
    """Cuts a GPT by the sizes of its layers; the table shows that no cut is better, and that the stages are it."""
    model = GPT(GPTConfig(vocabulary=4096, positions=32, layers=6, hidden=32, heads=2), seed=0).to(world.device)
    stages = min(world.size + 1, len(layers_of(model)))  # also on one rank there is something to cut
    tokens = torch.arange(64, device=world.device).view(2, 32)
    times = [sum(p.numel() for p in layer.parameters()) for layer in layers_of(model).values()]  # about as long
    _, counts = partition(times, stages)
    parts = split(model, counts)
    x = tokens
    for part in parts:
        x = part(x)
    different = int((x != model(tokens)[0]).sum())
    rows = Rows("Narayanan et al. 2019, §3.1")
    what = "slowest stage, over that of the best of all (L−1 choose s−1) cuts"
    cuts = {
        f"by parameters, {stages} stages": (times, stages),
        # The best cut of these takes 12; with equally many blocks in each stage it is 15.
        "an embedding, eight blocks and a head, 4 stages": ([1, 4, 4, 4, 4, 4, 4, 4, 4, 7], 4),
        "as many stages as layers": ([3, 1, 2], 3),
    }
    for case, (layer_costs, count) in cuts.items():
        found = _slowest(layer_costs, partition(layer_costs, count)[1])
        rows.add(what, "1", 1, found / _best(layer_costs, count), "1", case=case, how="compared")
    what = "outputs of the stages, one after another, that differ from the model's"
    rows.add(what, "0", 0, different, "1", how="compared")
    return rows.claims()


def _best(costs: Sequence[int], stages: int) -> int:
    """The slowest stage of the best of all cuts."""
    every = ([0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), stages - 1))
    return min(_slowest(costs, [end - begin for begin, end in pairwise(cuts)]) for cuts in every)


def _slowest(costs: Sequence[int], counts: Sequence[int]) -> int:
    return max(sum(costs[begin:end]) for begin, end in pairwise([0, *accumulate(counts)]))
