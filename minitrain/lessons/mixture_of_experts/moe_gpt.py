"""The lesson of `minitrain.mixture_of_experts.moe_gpt`: load is more even with the auxiliary loss, and text overflows.

Two trainings differ in α alone: same initial weights, same samples. Without the loss an expert that is chosen a little
more often learns a little more, and is chosen more often still. How even the load is, is its entropy −Σ p ln p over the
parts p of all tokens that each expert gets: ln E where all are equal, 0 where one gets all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.data.text import Samples, Text, windows
from minitrain.lessons.pictures import mixture_of_experts as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.layer import auxiliary_loss, layers, load
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

SEQ, BATCH, WINDOWS = 32, 16, 64
FACTORS, CLAIMED = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0), (1.0, 1.25, 2.0)  # capacity factors


def demo(world: World) -> list[Claim]:
    """Trains on text with and without the auxiliary loss; the table shows how even the load is, and what is dropped."""
    steps, experts, hidden, loss_factor = 40, max(8, world.size), 32, 0.03  # α; a few hundred steps show more
    rows, text = Rows("derived"), Text.load("reference")
    with_loss, without = (train(world, text, steps, experts, hidden, factor) for factor in (loss_factor, 0.0))
    last = max(steps // 4, 1)
    even, uneven = (entropy(each.loads[-last:]).mean().item() for each in (with_loss, without))
    what = f"entropy of a step's load, mean of the last {last} steps: with the auxiliary loss less without"
    margin, heuristic = math.log(experts) / 10, "heuristic, no proof"
    rows.add(what, "above ln E/10", margin, even - uneven, "nats", heuristic, how="compared", relation=">=")

    lost = dict(zip(FACTORS, dropped(world, with_loss, text, FACTORS), strict=True))
    evenly = {c: costs.dropped_fraction(SEQ, experts, costs.capacity(SEQ, experts, c)) for c in FACTORS}
    what, source = "part of tokens dropped, text, trained router, beside even choices", f"{heuristic}; P binomial"
    for c in CLAIMED:
        formula = "more than E/T · Σ (x − C) · P(x), x > C"
        rows.add(what, formula, evenly[c], lost[c], "1", source, case=f"capacity factor {c:g}", relation=">=")
    entropies = {loss_factor: entropy(with_loss.loads), 0.0: entropy(without.loads)}
    world.figure(lambda: pictures.trainings(entropies, experts, {c: (lost[c], evenly[c]) for c in FACTORS}))
    return rows.claims()


class Training(NamedTuple):
    """A model with experts on all ranks; of each step, all ranks' tokens of each expert, and this rank's loss."""

    model: ExpertParallel
    loads: Int[Tensor, "steps experts"]
    losses: list[float]


def train(world: World, text: Text, steps: int, experts: int, hidden: int, loss_factor: float) -> Training:
    """Train a GPT of two blocks, the second with a mixture, its experts on all ranks; `loss_factor` is α."""
    # float64: in float32 another processor's rounding sends a few tokens elsewhere, and the curves part.
    gpt = GPT(GPTConfig(positions=SEQ, layers=2, hidden=hidden, heads=2), seed=0).to(world.device, torch.float64)
    replace_mlps(gpt, lambda layer: Switch(hidden, experts, capacity_factor=None, loss_factor=loss_factor, layer=layer))
    model = ExpertParallel(gpt, split_data_parallel(world.size))
    optimizer, samples = torch.optim.AdamW(model.parameters(), lr=1e-3), Samples(text.training, SEQ)
    batch = -(-BATCH // world.size) * world.size
    loads, losses = [], []
    for step in range(steps):
        inputs, targets = (tensor.to(world.device) for tensor in samples.batch(step, batch, world.rank, world.size))
        _, loss = model(inputs, targets)
        (loss + auxiliary_loss(model)).backward()
        model.synchronize()
        optimizer.step()
        optimizer.zero_grad()
        loads.append(load(model)[-1])
        losses.append(loss.item())
    together = torch.stack(loads)
    dist.all_reduce(together)  # tokens of all ranks
    return Training(model, together.cpu(), losses)


def entropy(load: Int[Tensor, "*steps experts"]) -> Float[Tensor, "*steps"]:
    """−Σ p ln p of the parts of the load, in nats."""
    parts = load / load.sum(-1, keepdim=True)
    return -torch.special.xlogy(parts, parts).sum(-1)


def dropped(world: World, training: Training, text: Text, factors: tuple[float, ...]) -> list[float]:
    """The part of tokens that finds no place, on text that training never saw, for each capacity factor."""
    layer = layers(training.model)[-1]
    router = layer.router
    assert isinstance(router, Switch)
    inputs, _ = windows(text.validation, SEQ, WINDOWS)
    mine = inputs.tensor_split(world.size)[world.rank].to(world.device)
    lost = []
    training.model.train()  # a capacity holds in training only
    for factor in factors:
        router.capacity_factor = factor
        with torch.no_grad():
            training.model(mine)
        assert layer.routing is not None
        counts = torch.tensor([len(layer.routing.dropped), layer.routing.tokens], device=world.device)
        dist.all_reduce(counts)
        lost.append((counts[0] / counts[1]).item())
    router.capacity_factor = None
    return lost
