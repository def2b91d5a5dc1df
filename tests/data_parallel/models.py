"""Small models of every kind that data parallelism must get right, and the one device that it is compared with."""

from __future__ import annotations

import torch
import torch.distributed as dist
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


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def close(module: nn.Module, reference: nn.Module, tolerance: float = 1e-12) -> None:
    """The same gradients (None where the other has None) and the same parameters."""
    for name, expected in gradients(reference).items():
        found = gradients(module)[name]
        assert (found is None) == (expected is None), f"{name}: {found} instead of {expected}"
        if expected is not None:
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")  # noqa: B023
    for (name, found), expected in zip(module.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{name}: {m}")  # noqa: B023


SMALL = 0.001  # MiB in a bucket, so that these small models have several


def norm(module: nn.Module) -> torch.Tensor:
    """Of all gradients together."""
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm()


def small_equals_one_device(world, rung, *settings):
    """Three steps of a small form on all ranks, and on one device with the whole batch: loss, gradients, norm, weights.

    Weights are compared last, since AdamW and clipping would hide a gradient of the wrong scale.
    """
    model, reference = rung(gpt(seed=world.rank), None, *settings), gpt(seed=0)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, reference)]
    for step in range(3):
        inputs, targets = tokens(2 * world.size, step)
        mine = slice(2 * world.rank, 2 * world.rank + 2)
        loss, expected = model(inputs[mine], targets[mine])[1], reference(inputs, targets)[1]
        loss.backward()
        expected.backward()
        model.synchronize()
        dist.all_reduce(mean := loss.detach() / world.size)
        torch.testing.assert_close(mean, expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(norm(model), norm(reference), rtol=1e-12, atol=1e-12)
        close(model.module, reference)
        for each in optimizers:
            each.step()
            each.zero_grad()


def small_equals_full(world, small, full, same_order, *settings):
    """Gradients of both forms: bit by bit, or within what another order of additions can make.

    Both add the same n terms, gᵣ/n. With u = eps/2 and γ = (n−1)u / (1 − (n−1)u), a sum of n terms in any order lies
    within γ Σ|gᵣ|/n of the exact one (Higham 2002, §4.2), so two orders differ by at most twice that.
    """
    models = [form(gpt(seed=world.rank), None, *settings) for form in (small, full)]
    for step in range(2):
        inputs, targets = tokens(world.size, step)
        for model in models:
            model.zero_grad()
            model(inputs[world.rank, None], targets[world.rank, None])[1].backward()
        alone = gpt(seed=0)
        alone(inputs[world.rank, None], targets[world.rank, None])[1].backward()
        for model in models:
            model.synchronize()
        for own, mine, its in zip(*(each.parameters() for each in (alone, *models)), strict=True):
            dist.all_reduce(terms := own.grad.abs() / world.size)
            rounding = (world.size - 1) * torch.finfo(torch.float64).eps / 2
            # 1.001, since the bound rounds as well.
            bound = 0.0 if same_order else 1.001 * 2 * rounding / (1 - rounding) * terms
            assert ((mine.grad - its.grad).abs() <= bound).all()
