"""A profile: how long each layer of a model takes, how many bytes it passes on, and how many its weights have.

**Idea.** Planners need three numbers of each layer, and all three can be measured on one GPU in a minute: seconds of
forward and backward on one minibatch, bytes of the output, which a cut after the layer would send, and bytes of
weights, which replicas would all-reduce. Times are medians, since a first run also loads kernels and fills caches.

**Source.** Narayanan et al. 2019, "PipeDream", §3.1, who profile 1,000 minibatches.
**Cost.** `repeats` + 1 forwards and backwards of the model on one device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Layer(NamedTuple):
    name: str
    forward: float  # milliseconds of a minibatch
    backward: float
    activation: int  # bytes of the output
    weight: int  # bytes of the parameters


def measure(model: nn.Sequential, x: Tensor, repeats: int = 5) -> list[Layer]:
    """Time each layer of `model` on a minibatch `x`; a layer takes one tensor and returns one."""
    assert repeats >= 1, f"{repeats=} must be at least 1"
    profile = []
    for name, layer in model.named_children():
        # Each layer begins a graph of its own, so that its backward ends at its own input.
        x = x.detach().requires_grad_(x.is_floating_point())
        leaves = [leaf for leaf in (x, *layer.parameters()) if leaf.requires_grad]
        times = []
        for _ in range(repeats + 1):
            start = clock(x)
            y = layer(x)
            middle = clock(x)
            # The size of the gradient doesn't matter for the time, only its shape.
            if leaves and y.requires_grad:
                torch.autograd.grad(y, leaves, torch.ones_like(y))
            times.append((middle - start, clock(x) - middle))
        # The first run is a warm-up.
        forward, backward = (1000 * median(column) for column in zip(*times[1:], strict=True))
        weight = sum(parameter.nbytes for parameter in layer.parameters())
        profile.append(Layer(name, forward, backward, y.nbytes, weight))
        x = y
    return profile


def clock(x: Tensor) -> float:
    # A GPU computes while Python goes on, so wait for it before looking at the clock.
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def write(path: Path, profile: Sequence[Layer]) -> None:
    lines = ["# name forward_ms backward_ms activation_bytes weight_bytes"]
    lines += [f"{name} {forward!r} {backward!r} {a} {w}" for name, forward, backward, a, w in profile]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def read(path: Path, names: Sequence[str] = ()) -> list[Layer]:
    """Read a profile; with `names`, the layers of the model, in their order."""
    found = {}
    # Lines that begin with # are comments, for instance on where a profile comes from.
    for line in path.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, *numbers = line.split()
            assert len(numbers) == 4, f"{path.name}: {line!r} needs a name and four numbers"
            layer = Layer(name, float(numbers[0]), float(numbers[1]), int(numbers[2]), int(numbers[3]))
            assert min(layer[1:]) >= 0, f"{path.name}: {line!r} has a number below 0; measure it again"
            assert name not in found, f"{path.name}: layer {name} is there twice"
            found[name] = layer
    missing = [name for name in names if name not in found]
    assert not missing, f"{path.name} has no layers {missing}; measure the model that is to be planned"
    return [found[name] for name in names or found]


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
