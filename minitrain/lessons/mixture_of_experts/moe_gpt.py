"""What the demo of `moe_gpt` claims: load is more even with the auxiliary loss, and text overflows sooner than chance.

Two trainings differ in α alone: same initial weights, same samples. Without the loss an expert that is chosen a little
more often learns a little more, and is chosen more often still. How even the load is, is its entropy −Σ p ln p over the
parts p of all tokens that each expert gets: ln E where all are equal, 0 where one gets all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import World
from minitrain.costs import mixture_of_experts as costs
from minitrain.data.text import Samples, Text, windows
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallel, split_data_parallel
from minitrain.mixture_of_experts.full.layer import auxiliary_loss, layers, load
from minitrain.mixture_of_experts.full.switch import Switch
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SEQ, BATCH, WINDOWS = 32, 16, 64
FACTORS, CLAIMED = (0.5, 1.0, 1.25, 1.5, 2.0, 3.0), (1.0, 1.25, 2.0)  # capacity factors
HEURISTIC, DERIVED = "heuristic, no proof", "heuristic, no proof, that text is less even than P, binomial"


class Training(NamedTuple):
    """What a training leaves.

    Attributes:
        model: The model, its experts spread over all ranks.
        loads: Tokens of all ranks that each expert got in each step.
        losses: This rank's loss in each step, without the auxiliary one, in nats per byte.
    """

    model: ExpertParallel
    loads: Int[Tensor, "steps experts"]
    losses: list[float]


def train(
    world: World, text: Text, steps: int, experts: int, hidden: int, loss_factor: float, learning_rate: float = 1e-3
) -> Training:
    """Trains a GPT of two blocks, the second with a mixture, with experts on all ranks.

    Args:
        world: This rank.
        text: What to learn.
        steps: Their number.
        experts: Number of experts, at least that of ranks.
        hidden: Width.
        loss_factor: α; 0: no auxiliary loss.
        learning_rate: Of AdamW.
    """
    # float64: in float32 another processor's rounding sends a few tokens elsewhere, and the curves part.
    gpt = GPT(GPTConfig(positions=SEQ, layers=2, hidden=hidden, heads=2), seed=0).to(world.device, torch.float64)
    replace_mlps(gpt, lambda layer: Switch(hidden, experts, capacity_factor=None, loss_factor=loss_factor, layer=layer))
    model = ExpertParallel(gpt, split_data_parallel(world.size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    samples = Samples(text.training, SEQ)
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


def claims(world: World, steps: int, experts: int, hidden: int, loss_factor: float, data: str) -> list[Claim]:
    """All claims of the demo; see there."""
    experts, text = max(experts, world.size), Text.load(data)
    with world.timed(f"two trainings of {steps} steps"):
        trainings = {factor: train(world, text, steps, experts, hidden, factor) for factor in (loss_factor, 0.0)}
    last = max(steps // 4, 1)
    entropies = [entropy(each.loads[-last:]).mean().item() for each in trainings.values()]
    measured = dropped(world, trainings[loss_factor], text, FACTORS)
    expected = [costs.dropped_fraction(SEQ, experts, costs.capacity(SEQ, experts, factor)) for factor in FACTORS]
    world.figure(lambda: picture(trainings, measured, expected))
    world.cost(f"entropy of a step's load, α = {loss_factor:g}, ln E = {math.log(experts):.3g}", entropies[0], "nats")
    world.cost("entropy of a step's load, α = 0", entropies[1], "nats")
    cases = {
        f"capacity factor {factor:g}": Claim(
            "", "more than E/T · Σ (x − C) · P(x), x > C", evenly, found, "1", DERIVED, relation=">="
        )
        for factor, found, evenly in zip(FACTORS, measured, expected, strict=True)
        if factor in CLAIMED
    }
    what = f"entropy of a step's load, mean of the last {last} steps: with the auxiliary loss less without"
    margin, more = math.log(experts) / 10, entropies[0] - entropies[1]
    return [
        *size(experts, hidden),
        Claim(what, "above ln E/10", margin, more, "nats", HEURISTIC, "compared", ">=", key=True),
        fold("part of tokens dropped, text, trained router, beside even choices", cases, key=True),
    ]


def size(experts: int, hidden: int) -> list[Claim]:
    """Claims on what replacing every second feed-forward layer of five adds: parameters, and operations of a token."""
    config = GPTConfig(positions=SEQ, layers=5, hidden=hidden, heads=2)
    inputs, found = torch.zeros(2, SEQ, dtype=torch.int64), []
    for mixed in (False, True):
        gpt = GPT(config, seed=0)
        if mixed:
            replace_mlps(gpt, lambda layer: Switch(hidden, experts, capacity_factor=None, layer=layer), "loop")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            gpt(inputs)
        found.append((sum(parameter.numel() for parameter in gpt.parameters()), counter.get_total_flops()))
    (dense, work), (sparse, more_work) = found
    each = costs.expert_parameters(hidden, 4 * hidden)
    parameters = 2 * ((experts - 1) * each + experts * hidden)
    routers = 2 * costs.router_flops(inputs.numel(), hidden, experts)
    on, two = "a GPT of five blocks, two with mixtures: ", "2 · "
    return [
        Claim(
            on + "parameters more than a dense one's",
            two + "((E − 1)(2hm + m + h) + hE)",
            parameters,
            sparse - dense,
            "1",
            "derived",
            key=True,
        ),
        Claim(on + "operations more, forward", two + "2hE a token", routers, more_work - work, "1", "derived"),
    ]


def picture(trainings: dict[float, Training], measured: list[float], expected: list[float]) -> Figure:
    """Left: how even the load is over the steps. Right: what is dropped for each capacity factor."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (factor, training), style in zip(trainings.items(), ("-", "--"), strict=True):
        left.plot(entropy(training.loads).tolist(), style, label=f"α = {factor:g}")
    experts = next(iter(trainings.values())).loads.shape[1]
    left.axhline(math.log(experts), color="grey", linewidth=0.8, linestyle=":")
    left.annotate("ln E: all experts alike", (0, math.log(experts)), xytext=(0, 3), textcoords="offset points")
    left.set(xlabel="step", ylabel="entropy of the load, nats", ylim=(0, 1.15 * math.log(experts)))
    right.plot(FACTORS, [100 * part for part in measured], "o-", label="text, trained router")
    right.plot(FACTORS, [100 * part for part in expected], "s--", label="even choices, by the formula")
    right.set(xlabel="capacity factor", ylabel="tokens dropped, %", ylim=(0, 100))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return figure


def demo(
    world: World,
    steps: int = 40,
    experts: int = 8,
    hidden: int = 32,
    loss_factor: float = 0.03,
    data: str = "reference",
) -> list[Claim]:
    """Trains on text with and without the auxiliary loss; the table shows how even the load is, and what is dropped.

    Args:
        steps: Training steps, each of two trainings; a few hundred show more.
        experts: Number of experts; raised to the number of ranks where it is less.
        hidden: Width of the GPT.
        loss_factor: α of Switch's auxiliary loss.
        data: "reference", "library", or the path of a text.
    """
    return claims(world, steps, experts, hidden, loss_factor, data)
