"""The lesson of `minitrain.mixture_of_experts.bias_balanced`: gates without the bias, and a case solved by hand.

The case: two experts, one choice, and T tokens, of which token t scores expert 0 higher by (t + ½) δ. So expert 0 has
all tokens at first. `minitrain.costs.mixture_of_experts.bias_steps` says when it has half of them, and `bias_overshoot`
how many more than half it can have afterwards.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from minitrain.comm import Ledger, World
from minitrain.comm.control import gather_objects
from minitrain.costs import mixture_of_experts as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key, fold
from minitrain.lessons.mixture_of_experts import common as lesson
from minitrain.mixture_of_experts import bias_balanced

WANG, DEEPSEEK = "Wang et al. 2024, algorithm 1", "DeepSeek-V3, §2.1.2"


def demo(world: World, experts: int = 8, choices: int = 3, tokens: int = 120, gap: float = 1 / 256) -> list[Claim]:
    """Routes with a bias and changes it; the table shows gates, loads, bytes, and steps until experts are balanced.

    Args:
        experts: Number of experts, for the gates and the loads.
        choices: Experts of a token.
        tokens: Tokens on all ranks in the case solved by hand.
        gap: How much more each of its tokens likes expert 0 than the one before.
    """
    if tokens % 2 or not 0 < gap * tokens < 0.5:
        raise ValueError(f"tokens={tokens} must be even and gap={gap} below 1/(2 · tokens), since scores are below 1")
    claims = [
        *as_key(gates(world, experts, choices), *counted(world, experts, choices)),
        *as_key(*solved(world, tokens, gap)),
    ]
    bias = torch.zeros(experts, dtype=torch.float64, device=world.device)
    x, weight = lesson.random_scores(world, 4096, experts), torch.eye(experts, dtype=torch.float64).to(world.device)
    with world.timed(f"routing 4096 tokens to {experts} experts", 4096, "tokens"):
        bias_balanced.update(bias, bias_balanced.route(x, weight, bias, choices)[0])
    return claims


def gates(world: World, experts: int, choices: int) -> Claim:
    """The claim that gates are shares of the scores, with biases that choose experts whose scores are small."""
    x = lesson.random_scores(world, 64, experts, seed=world.rank)
    bias = torch.linspace(-1, 1, experts, dtype=torch.float64, device=world.device)
    weight = torch.eye(experts, dtype=torch.float64, device=world.device)
    chosen, found, _ = bias_balanced.route(x, weight, bias, choices)
    apart = 0.0
    for row, experts_of_it, weights in zip(x.tolist(), chosen.tolist(), found.tolist(), strict=True):
        scores = [1 / (1 + math.exp(-row[expert])) for expert in experts_of_it]
        shares = [score / sum(scores) for score in scores]
        apart = max(apart, *(abs(one - other) for one, other in zip(shares, weights, strict=True)))
    what = "largest difference of a gate from σ(xᵢ) over the sum of the chosen, whatever the bias"
    return Claim(what, "10⁻¹², float64", lesson.EXACT, apart, "1", DEEPSEEK, "compared", "<=")


def counted(world: World, experts: int, choices: int) -> list[Claim]:
    """Claims on the load, which is that of all ranks, and on what its sum costs."""
    x = lesson.lopsided_scores(world, 32 + world.rank, experts, seed=world.rank)
    bias = torch.zeros(experts, dtype=torch.float64, device=world.device)
    weight = torch.eye(experts, dtype=torch.float64, device=world.device)
    chosen, _, _ = bias_balanced.route(x, weight, bias, choices)
    with Ledger() as ledger:
        load = bias_balanced.update(bias, chosen, 0.5).tolist()
    everyone = [expert for theirs in gather_objects(chosen.flatten().tolist()) for expert in theirs]
    expected = [everyone.count(expert) for expert in range(experts)]
    mean = len(everyone) / experts
    moved = [0.5 * ((mean > mine) - (mean < mine)) for mine in expected]
    wrong = sum(one != other for one, other in zip(load + bias.tolist(), expected + moved, strict=True))
    return [
        Claim("loads and biases after a step that differ from a count of all ranks' tokens", "0", 0, wrong, "1", WANG),
        Claim(
            "bytes of the all-reduce of loads, per layer and step",
            "8E",
            costs.load_bytes(experts),
            ledger.payload("all_reduce"),
            "B",
            WANG,
        ),
    ]


def loads_of_expert_0(world: World, tokens: int, gap: float, speed: float, steps: int) -> list[int]:
    """The load of expert 0 in each step of the case solved by hand; each rank has neighbouring tokens."""
    more = (torch.arange(tokens, dtype=torch.float64) + 0.5) * gap
    scores = torch.stack([0.5 + more, torch.full_like(more, 0.5)], 1).tensor_split(world.size)[world.rank]
    x, weight = scores.logit().to(world.device), torch.eye(2, dtype=torch.float64, device=world.device)
    bias, loads = torch.zeros(2, dtype=torch.float64, device=world.device), []
    for _ in range(steps):
        chosen: Tensor = bias_balanced.route(x, weight, bias, 1)[0]
        loads.append(int(bias_balanced.update(bias, chosen, speed)[0]))
    return loads


def solved(world: World, tokens: int, gap: float) -> list[Claim]:
    """Claims on the steps until expert 0 has half the tokens, and on what the busier one has from then on."""
    steps, after = {}, {}
    for turns in (1, 3, 7):  # tokens that change their expert in a step
        speed = turns * gap / 2
        predicted = costs.bias_steps(tokens, gap, speed)
        loads = loads_of_expert_0(world, tokens, gap, speed, predicted + 8)
        first = next((step for step, load in enumerate(loads) if load <= tokens // 2), len(loads))
        case = f"u = {turns} · δ/2"
        steps[case] = Claim("", "⌈(T/2 − ½) δ / 2u⌉", predicted, first, "steps", "derived", "compared")
        busier = max(max(load, tokens - load) for load in loads[predicted:])
        most = tokens // 2 + costs.bias_overshoot(gap, speed)
        after[case] = Claim("", "T/2 + 2u/δ − 1", most, busier, "tokens", "derived", "compared", "<=")
    return [
        fold("steps until an expert that all tokens prefer has no more than half; three speeds", steps),
        fold("most tokens of an expert from then on; three speeds", after),
    ]
