"""Small models for these tests, in float64, and a comparison to the last bit."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.models import GPT, GPTConfig


def gpt(**choices) -> GPT:
    """A GPT with dropout; the same each time."""
    sizes = {"vocabulary": 17, "positions": 5, "layers": 3, "hidden": 6, "heads": 2, "dropout": 0.2}
    return GPT(GPTConfig(**{**sizes, "attention": "plain", **choices}), seed=0).double()


def tokens(samples: int = 2, seed: int = 0):
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(17, (2, samples, 5), generator=generator).unbind()


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def same_bits(module: nn.Module, reference: nn.Module) -> None:
    """The same parameters have gradients, and these have the same bits."""
    for (name, expected), found in zip(gradients(reference).items(), gradients(module).values(), strict=True):
        assert (found is None) == (expected is None), f"{name}: {found} instead of {expected}"
        assert expected is None or torch.equal(found, expected), f"{name}: {(found - expected).abs().max()}"


def step(module: nn.Module, *inputs: torch.Tensor) -> float:
    """One forward and backward from a fixed random state; returns the next random number."""
    torch.manual_seed(0)
    outputs = module(*inputs)
    (outputs[1] if isinstance(outputs, tuple) else outputs.sum()).backward()
    return float(torch.rand(()))
