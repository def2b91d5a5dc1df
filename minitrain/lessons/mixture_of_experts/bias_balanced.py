"""The lesson of `minitrain.mixture_of_experts.bias_balanced`: gates without the bias, and biases after a step."""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import bias_balanced


def demo(world: World) -> list[Claim]:
    """Routes with a bias and changes it; the table shows gates, loads, biases and bytes."""
    rows, experts, choices = Rows("Wang et al. 2024, algorithm 1"), 8, 3
    bias = torch.linspace(-1, 1, experts, dtype=torch.float64, device=world.device)
    x = lesson.random_scores(world, 32 + world.rank, experts)
    x[:, 0] += 2  # most tokens prefer expert 0; the biases let them choose others
    chosen, gates, _ = bias_balanced.route(x, lesson.one(world, experts), bias, choices)
    score = (1 / (1 + (-x).exp())).gather(-1, chosen)
    what = "largest difference of a gate from σ(xᵢ) over the sum of the chosen, whatever the bias"
    shares = score / score.sum(-1, keepdim=True)
    rows.near(what, gates, shares, lesson.EXACT, "10⁻¹²", ROUNDING)

    before = bias.tolist()
    with Ledger() as ledger:
        load = bias_balanced.update(bias, chosen, 0.5).tolist()
    everyone = [expert for theirs in gather_objects(chosen.flatten().tolist()) for expert in theirs]
    counted, mean = [everyone.count(expert) for expert in range(experts)], len(everyone) / experts
    moved = [b + 0.5 * ((mean > mine) - (mean < mine)) for b, mine in zip(before, counted, strict=True)]
    wrong = sum(one != other for one, other in zip(load + bias.tolist(), counted + moved, strict=True))
    rows.add("loads and biases after a step that differ from a count of all ranks' tokens", "0", 0, wrong, "1")
    sent = ledger.payload("all_reduce")
    rows.add("bytes of the all-reduce of loads, per layer and step", "8E", costs.load_bytes(experts), sent)

    return rows.claims()
