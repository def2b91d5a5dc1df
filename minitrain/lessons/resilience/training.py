"""Shared by the demos of ordered sums and of regrouping: a small network, whose batch is a number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

INPUTS, HIDDEN, SAMPLES = 8, 17, 5
ELEMENTS = INPUTS * HIDDEN + HIDDEN  # 153, which neither 2 nor 4 divides
LR, MOMENTUM = 0.1, 0.9
Sum = Callable[[Sequence[Tensor]], Tensor]


def weights(device: torch.device) -> Tensor:
    """Before the first step, in float32: the same on all ranks."""
    return torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(16)).div(3).to(device)


def loss_of(w: Tensor, step: int, micro_batch: int) -> Tensor:
    """The mean loss of a micro-batch."""
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    x = torch.randn(SAMPLES, INPUTS, generator=generator).to(w.device)
    hidden = torch.tanh(x @ w[: INPUTS * HIDDEN].view(INPUTS, HIDDEN))
    return F.mse_loss(hidden @ w[INPUTS * HIDDEN :], x.sin().sum(1))


def gradients(w: Tensor, step: int, micro_batches: Iterable[int]) -> list[Tensor]:
    """Of each micro-batch by itself, flat."""
    found = []
    for micro_batch in micro_batches:
        leaf = w.detach().requires_grad_()
        found.append(torch.autograd.grad(loss_of(leaf, step, micro_batch), leaf)[0])
    return found


def in_order(found: Sequence[Tensor]) -> Tensor:
    """One device: the sum of all gradients, one after the other."""
    total = torch.zeros_like(found[0])
    for gradient in found:
        total = total + gradient
    return total
