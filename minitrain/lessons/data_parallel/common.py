"""Shared by the demos of this chapter: a small GPT, a step of it, and comparing with one device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.costs import data_parallel as costs
from minitrain.lessons.rows import Rows
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

PAPER = "Li et al. 2020"
SEQ = 16
BUCKET = 32 * 1024  # bytes


def small_gpt(world: World, seed: int | None = None, layers: int = 2, hidden: int = 32) -> GPT:
    """A GPT whose gradients have the same bits each time; fused attention on a GPU adds in any order.

    Without a seed every rank draws other weights; rank 0's are what all start from.
    """
    config = GPTConfig(vocabulary=61, positions=SEQ, layers=layers, hidden=hidden, heads=2, attention="plain")
    return GPT(config, seed=world.rank if seed is None else seed).to(world.device)


def tokens(world: World, rank: int, step: int = 0, samples: int = 2) -> tuple[Tensor, Tensor]:
    """The part of a step's batch that falls to `rank`: inputs and targets."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs, targets = torch.randint(61, (2, samples, SEQ), generator=generator).to(world.device)
    return inputs, targets


def step(world: World, model: Any) -> None:
    """One backward and synchronize on this rank's part."""
    model(*tokens(world, world.rank))[1].backward()
    model.synchronize()


def counted(world: World, model: Any) -> Ledger:
    """What this rank sends in a step."""
    with Ledger() as ledger:
        step(world, model)
    return ledger


def sizes(model: nn.Module) -> list[costs.Sizes]:
    """The parameters in the form of `costs`."""
    return [costs.Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in model.parameters()]


def gradients(module: nn.Module) -> Tensor:
    """All gradients, one after the other."""
    found = [parameter.grad for parameter in module.parameters()]
    return torch.cat([each.flatten() for each in found if each is not None])


def mean_of_parts(world: World, rows: Rows, model: Any, reference: nn.Module) -> None:
    """Claim that each gradient is the mean of those of `reference`, the same GPT on one device, of each rank's part."""
    parts = []
    for rank in range(world.size):
        reference.zero_grad()
        reference(*tokens(world, rank))[1].backward()
        parts.append(gradients(reference))
    model.zero_grad()
    step(world, model)
    what = "gradients' distance from the mean of the parts on one device, in Σ|gᵣ|/n"
    near_mean(rows, what, gradients(model), torch.stack(parts))


def near_mean(rows: Rows, what: str, found: Tensor, parts: Tensor, whole: Tensor | None = None, case: str = "") -> None:
    """Claim that gradients are the mean of n parts g₀ … gₙ₋₁, which have the same bits on one device; it alone rounds.

    It takes rounding 1/n, a multiplication, and n−1 additions in whatever order, and the mean in float64 one rounding
    more, each with a relative error of at most u = eps/2. So it lies within γ · Σ|gᵣ|/n of that mean, γ = (n+2)u / (1 −
    (n+2)u) (Higham 2002, Lemma 3.1 and §4.2). Where n is 1 or 2, 1/n and the multiplication are exact, and one addition
    is the same in any order: all bits are equal. `whole` is that mean, where one device has taken the whole batch.
    """
    n = len(parts)
    rounding = (n + 2) * torch.finfo(found.dtype).eps / 2
    mean = parts.double().mean(0) if n > 2 else (parts / n).sum(0).double()
    mean = mean if whole is None else whole
    sizes = parts.double().abs().mean(0).clamp(min=torch.finfo(torch.float64).tiny)  # of some tokens no part has any
    error = (found.double() - mean) / sizes
    bound, formula = rounding / (1 - rounding) if n > 2 else 0.0, "γₙ₊₂ = (n+2)u / (1 − (n+2)u); 0 for n ≤ 2"
    rows.near(what, error, torch.zeros_like(error), bound, formula, "Higham 2002, §4.2", case)
