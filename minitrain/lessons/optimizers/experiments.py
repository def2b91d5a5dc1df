"""The experiment of the chapter's notebook: a small GPT, trained with growing batches.

Losses cannot be predicted, so nothing here is a claim. The picture is in `minitrain.lessons.pictures.optimizers`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch

from minitrain.comm import World
from minitrain.craft.schedules import warm_up
from minitrain.data.text import Samples, Text
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.scaling import linear, square_root

CONFIG = GPTConfig(positions=32, layers=2, hidden=32, heads=2)  # 34,688 parameters
SEEDS = (0, 1)  # of the first weights and of the samples
BATCHES = (4, 16, 64, 256)
SCALED: dict[str, tuple[Callable[..., Any], float]] = {"Adam": (Adam, 0.003), "LAMB": (LAMB, 0.01)}
RULES = {"linear": linear, "square root": square_root}
# Optimizer, rule, batch and seed; no rule for the smallest batch, whose rate is not scaled.
Training = tuple[str, str, int, int]
# From the smallest batch, with which both rules agree and share a training, to the largest.
TRAININGS: list[Training] = [(optimizer, "", BATCHES[0], seed) for optimizer, seed in product(SCALED, SEEDS)]
TRAININGS += [
    (optimizer, rule, batch, seed) for batch in BATCHES[1:] for optimizer, rule, seed in product(SCALED, RULES, SEEDS)
]


def sweep(world: World, sequences: int = 1024) -> dict[Training, float]:
    """Train a small GPT for each of `TRAININGS`, which the ranks share, on equally many sequences.

    The rate suits the smallest batch, and is scaled by a rule for the others. It is warmed up over an eighth of the
    steps. Returns the losses on held-out text of the trainings of this rank.
    """
    mine = TRAININGS[world.rank :: world.size]
    return {each: held_out(*each, sequences) for each in mine}


def held_out(name: str, rule: str, batch: int, seed: int, sequences: int) -> float:
    """The loss on held-out text after a training on so many sequences, with the rate that a rule gives."""
    make, best = SCALED[name]
    lr = RULES[rule](best, batch, BATCHES[0]) if rule else best
    return trained(make, lr, batch, sequences // batch, seed)


def trained(make: Callable[..., Any], lr: float, batch: int, steps: int, seed: int = 0) -> float:
    """The loss on held-out text after so many steps."""
    text, model = Text.load("reference"), GPT(CONFIG, seed=seed)
    samples, optimizer = Samples(text.training, CONFIG.positions, seed), make(model.parameters(), lr=lr)
    for step in range(steps):
        model.zero_grad()
        model(*samples.batch(step, batch))[1].backward()
        optimizer.lr = lr * warm_up(step, steps // 8)
        optimizer.step()
    return loss_on_held_out(model)


@torch.no_grad()
def loss_on_held_out(model: GPT, sequences: int = 256) -> float:
    """The loss on text that no step has read."""
    return model(*Samples(Text.load("reference").validation, CONFIG.positions).batch(0, sequences))[1].item()
