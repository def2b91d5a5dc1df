"""The schedule of the learning rate, and which parameters decay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from minitrain.composition.settings import Steps
from minitrain.optimizers.full.layer_wise import LAMB, LARS

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "lamb": LAMB,
    "lars": LARS,
}


def learning_rate(steps: Steps, number: int) -> float:
    """The learning rate of step `number`, from 0.

    It rises linearly for `warmup` steps, then goes down to a tenth along half a cosine (Loshchilov & Hutter 2017, §3;
    Brown et al. 2020, appendix B), or to 0 along a line, or stays.
    """
    if number < steps.warmup:
        return steps.lr * (number + 1) / (steps.warmup + 1)
    progress = min(1.0, (number - steps.warmup) / max(1, steps.steps - steps.warmup))
    if steps.decay == "cosine":
        return steps.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)
    return steps.lr * (1 - progress) if steps.decay == "linear" else steps.lr


def options(steps: Steps) -> dict[str, Any]:
    """The optimizer's options, without the parameters; β₂ = 0.95 as in Brown et al. 2020, appendix B."""
    return {"lr": steps.lr} | ({"betas": (0.9, 0.95)} if steps.optimizer in ("adamw", "lamb") else {})


def groups(parameters: Mapping[str, nn.Parameter], steps: Steps) -> list[dict[str, Any]]:
    """The parameter groups: matrices and embeddings decay, norms and biases, which have one dim, do not."""
    decayed = [parameter for parameter in parameters.values() if parameter.dim() >= 2]
    others = [parameter for parameter in parameters.values() if parameter.dim() < 2]
    both = [{"params": decayed, "weight_decay": steps.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in both if group["params"]]
