"""The optimizers of this chapter, ready for a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from minitrain.optimizers.adafactor import Adafactor
from minitrain.optimizers.adam import Adam
from minitrain.optimizers.adam8bit import Adam8bit
from minitrain.optimizers.lamb import LAMB
from minitrain.optimizers.lars import LARS
from minitrain.optimizers.muon import Muon
from minitrain.optimizers.sm3 import SM3


def muon_and_adam(model: nn.Module, within: str = "blocks") -> list[Any]:
    """Muon for the matrices within the blocks, Adam for everything else."""
    inner, others = [], []
    for name, parameter in model.named_parameters():
        (inner if parameter.dim() == 2 and name.startswith(within) else others).append(parameter)
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
