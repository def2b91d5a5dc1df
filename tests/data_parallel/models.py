"""Small models of every kind that data parallelism must get right, and the one device that it is compared with."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.models import GPT, GPTConfig


class Branches(nn.Module):
    """Two layers of which an input uses the first, the second, both or none, beside one that is always used."""

    def __init__(self):
        super().__init__()
        self.always = nn.Linear(3, 5)
        self.first = nn.Linear(5, 2)
        self.second = nn.Linear(5, 2)

    def forward(self, x, branches):
        hidden = torch.tanh(self.always(x))
        return hidden.sum() + sum(getattr(self, name)(hidden).square().sum() for name in branches)


class Mixed(nn.Module):
    """Parameters of three dtypes, one of them complex, one with gaps in memory, and one without elements."""

    def __init__(self):
        super().__init__()
        self.low = nn.Linear(3, 5).float()
        self.high = nn.Linear(5, 3).double()
        self.phase = nn.Parameter(torch.randn(3, 3, dtype=torch.complex128))
        self.turned = nn.Parameter(torch.randn(3, 3, dtype=torch.float64).t())
        self.nothing = nn.Parameter(torch.zeros(0, dtype=torch.float64))
        self.register_buffer("mask", torch.rand(3) > 0.5)
        self.register_buffer("turned_buffer", torch.rand(3, 2).t())

    def forward(self, x):
        hidden = self.high(torch.tanh(self.low(x.float())).double()) @ self.turned
        return (hidden.to(self.phase.dtype) @ self.phase).abs().square().mean() + self.nothing.sum()


def gpt(seed: int, **choices) -> GPT:
    """A GPT whose parameters have odd sizes, in float64, so that only the order of additions makes a difference."""
    sizes = {"vocabulary": 17, "positions": 5, "layers": 2, "hidden": 6, "heads": 2}
    return GPT(GPTConfig(**{**sizes, **choices}), seed=seed).double()


def tokens(samples: int, step: int = 0):
    """Inputs and targets of one step."""
    generator = torch.Generator().manual_seed(step)
    return torch.randint(17, (2, samples, 5), generator=generator).unbind()


def close(module: nn.Module, reference: nn.Module, tolerance: float = 1e-12) -> None:
    """The same gradients (None where the other has None) and the same parameters."""
    pairs = zip(module.named_parameters(), reference.parameters(), strict=True)
    for (name, found), expected in pairs:
        assert (found.grad is None) == (expected.grad is None), f"{name}: {found.grad} instead of {expected.grad}"
        for mine, its in ((found, expected), (found.grad, expected.grad)):
            torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


SMALL = 0.001  # MiB in a bucket, so that these small models have several
