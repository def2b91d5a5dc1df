"""An experiment of the chapter: a small GPT trained for some steps with each of its optimizers.

Losses cannot be predicted, so nothing here is a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from minitrain.comm import World
from minitrain.data.text import Samples, Text
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.lars import LARS
from minitrain.optimizers.muon import Muon
from minitrain.optimizers.sm3 import SM3

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def muon_and_adam(model: nn.Module) -> list[Any]:
    """Muon for the matrices in the blocks, Adam for everything else."""
    inner, others = [], []
    for name, parameter in model.named_parameters():
        (inner if parameter.dim() == 2 and name.startswith("blocks") else others).append(parameter)
    return [Muon(inner, lr=0.03), Adam(others, lr=0.01)]


# The best of three or four learning rates, tried on two seeds.
OPTIMIZERS: dict[str, Callable[[nn.Module], list[Any]]] = {
    "Adam": lambda model: [Adam(model.parameters(), lr=0.01)],
    "8-bit Adam": lambda model: [Adam8bit(model.parameters(), lr=0.003)],
    "Adafactor": lambda model: [Adafactor(model.parameters(), lr=0.1)],
    "SM3": lambda model: [SM3(model.parameters(), lr=0.1)],
    "LARS": lambda model: [LARS(model.parameters(), lr=1.0, eta=0.01)],
    "LAMB": lambda model: [LAMB(model.parameters(), lr=0.03)],
    "Muon": muon_and_adam,
}


def train_all(world: World, steps: int = 40, batch: int = 16) -> dict[str, list[float]]:
    """The loss of each step, by optimizer; every rank has a seed and samples of its own."""
    samples = Samples(Text.load("reference").training, 32)
    losses: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for name, make in OPTIMIZERS.items():
        model = GPT(GPTConfig(positions=32, layers=2, hidden=32, heads=2), seed=world.rank)
        optimizers = make(model)
        for step in range(steps):
            loss = model(*samples.batch(step + 1000 * world.rank, batch))[1]
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses[name].append(loss.item())
    return losses


def picture(by_rank: Sequence[dict[str, list[float]]], last: int = 10) -> Figure:
    """A dot per seed, and the mean of all seeds: each the mean loss of the last steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for row, name in enumerate(OPTIMIZERS):
        ends = [sum(losses[name][-last:]) / last for losses in by_rank]
        axes.plot(ends, [row] * len(ends), "o", color="#0072B2", alpha=0.6)
        mean = sum(ends) / len(ends)
        axes.text(mean, row - 0.25, f"{mean:.2f}", ha="center", fontsize=9)
    axes.set_yticks(range(len(OPTIMIZERS)), list(OPTIMIZERS))
    axes.set_ylim(len(OPTIMIZERS) - 0.5, -0.8)
    axes.set_xlabel(f"loss, mean of the last {last} steps; a dot per seed, and their mean")
    axes.spines[["top", "right"]].set_visible(False)
    return figure
