"""Steps that several tests make."""

from __future__ import annotations

import torch


def step(optimizer, *gradients):
    """One step with these gradients."""
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def pair(make, theirs, shapes, steps=5, seed=0, dtype=torch.float64):
    """Parameters after the same steps with ours and with torch's optimizer."""
    generator = torch.Generator().manual_seed(seed)
    starts = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    trained = []
    for build in (make, theirs):
        parameters = [start.clone() for start in starts]
        optimizer = build(parameters)
        drawn = torch.Generator().manual_seed(seed + 1)
        for _ in range(steps):
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape, generator=drawn, dtype=dtype)
            optimizer.step()
        trained.append(parameters)
    return list(zip(*trained, strict=True))
