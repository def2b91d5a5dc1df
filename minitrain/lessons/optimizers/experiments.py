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
BATCHES = (4, 16, 64, 256)
SCALED: dict[str, tuple[Callable[..., Any], float]] = {"Adam": (Adam, 0.003), "LAMB": (LAMB, 0.01)}
RULES = {"linear": linear, "square root": square_root}
Training = tuple[str, str, int]  # optimizer, rule and batch; no rule for the smallest batch, whose rate is not scaled
# From the smallest batch, with which both rules agree and share a training, to the largest.
TRAININGS: list[Training] = [(optimizer, "", BATCHES[0]) for optimizer in SCALED]
TRAININGS += [(optimizer, rule, batch) for batch in BATCHES[1:] for optimizer, rule in product(SCALED, RULES)]


def sweep(world: World, sequences: int = 2048) -> dict[Training, float]:
    """Train a small GPT once for each of `TRAININGS`, which the ranks share, on equally many sequences.

    The rate suits the smallest batch, and is scaled by a rule for the others. It is warmed up over an eighth of the
    steps. Returns the losses on held-out text of the trainings of this rank.
    """
    return {each: held_out(*each, sequences, seed=0) for each in TRAININGS[world.rank :: world.size]}


def held_out(name: str, rule: str, batch: int, sequences: int, seed: int) -> float:
    """The loss on held-out text after a training."""
    text, model, (make, best) = Text.load("reference"), GPT(CONFIG, seed=seed), SCALED[name]
    samples, steps = Samples(text.training, CONFIG.positions, seed), sequences // batch
    lr = RULES[rule](best, batch, BATCHES[0]) if rule else best
    optimizer = make(model.parameters(), lr=lr)
    for step in range(steps):
        model.zero_grad()
        model(*samples.batch(step, batch))[1].backward()
        optimizer.lr = lr * warm_up(step, steps // 8)
        optimizer.step()
    with torch.no_grad():
        return model(*Samples(text.validation, CONFIG.positions).batch(0, 256))[1].item()
