"""The experiment of the chapter's notebook: a small GPT, trained with growing batches.

Losses cannot be predicted, so nothing here is a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
