"""The schedule of the learning rate, and which parameters decay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from minitrain.composition.settings import Steps
from minitrain.craft import schedules
from minitrain.optimizers.full.adafactor import Adafactor
from minitrain.optimizers.full.layer_wise import LAMB, LARS
from minitrain.optimizers.full.muon import Muon

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "lamb": LAMB,
    "lars": LARS,
    "adafactor": Adafactor,
    "muon": Muon,
}


def learning_rate(steps: Steps, number: int) -> float:
    """The learning rate of step `number`, from 0.

    It rises linearly for `warmup` steps, then goes down to a tenth along half a cosine (Loshchilov & Hutter 2017, §3;
    Brown et al. 2020, appendix B), or to 0 along a line, or stays, or stays and falls at the end (Hu et al. 2024, §4).
    """
    if steps.decay == "cosine":
        return steps.lr * schedules.cosine(number, steps.steps, steps.warmup)
    if steps.decay == "wsd":
        return steps.lr * schedules.warmup_stable_decay(number, steps.steps, steps.warmup, steps.falling)
    # From the end of the warm-up, so that the line begins at the highest rate.
    left = 1 - schedules.done(number, steps.warmup, steps.steps) if steps.decay == "linear" else 1.0
    return steps.lr * left * schedules.constant(number, steps.warmup)


def options(steps: Steps) -> dict[str, Any]:
    """The optimizer's options, without the parameters; β₂ = 0.95 as in Brown et al. 2020, appendix B.

    Muon's rate is scaled as in Liu et al. 2025, §2.2, so that one rate suits it and the AdamW of the other parameters.
    """
    found: dict[str, Any] = {"lr": steps.lr}
    if steps.optimizer in ("adamw", "lamb", "muon"):
        found["betas"] = (0.9, 0.95)
    if steps.optimizer == "muon":
        found["adjust_lr_fn"] = "match_rms_adamw"
        found["ns_dtype"] = torch.float64 if steps.dtype == "float64" else torch.bfloat16
    return found


def groups(parameters: Mapping[str, nn.Parameter], steps: Steps) -> list[dict[str, Any]]:
    """The parameter groups: matrices and embeddings decay, norms and biases, which have one dim, do not.

    Muon steps the matrices of blocks, and AdamW all other parameters.
    """
    hidden, decayed, others = [], [], []
    for name, parameter in parameters.items():
        # In blocks only: Muon is not meant for the embedding and the head.
        matrix, in_block = parameter.dim() >= 2, name.startswith("blocks.")
        (hidden if matrix and in_block else decayed if matrix else others).append(parameter)
    if steps.optimizer == "muon":
        found = [{"params": hidden, "weight_decay": steps.weight_decay}]
        found += [{"params": decayed, "weight_decay": steps.weight_decay, "use_muon": False}]
        found += [{"params": others, "weight_decay": 0.0, "use_muon": False}]
    else:
        decayed = [parameter for parameter in parameters.values() if parameter.dim() >= 2]
        found = [{"params": decayed, "weight_decay": steps.weight_decay}, {"params": others, "weight_decay": 0.0}]
    # A pipeline stage may have no parameter of a kind.
    return [group for group in found if group["params"]]
