"""The lesson of `minitrain.mixture_of_experts.bias_balanced`: gates without the bias, and a case solved by hand.

The case: two experts, one choice, and T tokens, of which token t scores expert 0 higher by (t + ½) δ. So expert 0 has
all tokens at first. `minitrain.costs.mixture_of_experts.bias_steps` says when it has half of them.
"""

from __future__ import annotations

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.lessons.rows import ROUNDING, Claim, Rows
from minitrain.mixture_of_experts import bias_balanced


def demo(world: World) -> list[Claim]:
    """Routes with a bias and changes it; the table shows gates, loads, bytes, and steps until experts are balanced."""
    rows, experts, choices = Rows("Wang et al. 2024, algorithm 1"), 8, 3
    tokens, gap = 120, 1 / 256  # T and δ of the case solved by hand, δT below ½, since scores are below 1
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

    for turns in (1, 3, 7):  # tokens that change their expert in a step
        speed, case = turns * gap / 2, f"u = {turns} · δ/2"
        predicted = costs.bias_steps(tokens, gap, speed)
        loads = loads_of_expert_0(world, tokens, gap, speed, predicted + 8)
        first = next((step for step, load in enumerate(loads) if load <= tokens // 2), len(loads))
        what = "steps until an expert that all tokens prefer has no more than half; three speeds"
        rows.add(what, "⌈(T/2 − ½) δ / 2u⌉", predicted, first, "steps", "derived", case=case, how="compared")
    return rows.claims()


def loads_of_expert_0(world: World, tokens: int, gap: float, speed: float, steps: int) -> list[int]:
    """The load of expert 0 in each step of the case solved by hand; each rank has neighboring tokens."""
    more = (torch.arange(tokens, dtype=torch.float64) + 0.5) * gap
    scores = torch.stack([0.5 + more, torch.full_like(more, 0.5)], 1).tensor_split(world.size)[world.rank]
    x, bias, loads = scores.logit().to(world.device), torch.zeros(2, dtype=torch.float64, device=world.device), []
    for _ in range(steps):
        chosen, _, _ = bias_balanced.route(x, lesson.one(world, 2), bias, 1)
        loads.append(int(bias_balanced.update(bias, chosen, speed)[0]))
    return loads
