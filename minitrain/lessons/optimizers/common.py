"""Shared by the demos of optimizers: a small example, the bytes of states, and steps under ZeRO-1.

Two ways to compute the same may differ by their roundings: numbers and derivatives in the examples are at most 4, so
that each rounding moves a result by at most 4 · 4 · 2⁻⁵³. `bound` counts the roundings of both ways generously.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitrain.comm import Ledger, World
from minitrain.comm.memory import storage_bytes
from minitrain.lessons.rows import Rows

PAPER = "three steps of a 2 × 3 matrix: largest difference from the paper's formulas, worked out by hand"
SHAPES = ((31, 17), (21,), (5, 63))  # 863 elements, which neither 2 nor 3 nor 4 divides
LARGEST = 31 * 17
STEPS = 3  # under ZeRO-1
Make = Callable[[list[Tensor]], Any]  # an optimizer of these parameters


def example(world: World) -> tuple[Tensor, list[Tensor]]:
    """A 2 × 3 matrix and three gradients: the second is larger, so that mean squares lag, and the third smaller."""
    sizes = enumerate((1, 2, 0.5), 1)
    return draw(world, (2, 3), 0), [size * draw(world, (2, 3), seed) for seed, size in sizes]


def bound(steps: int, elements: int = 1) -> float:
    """The most that two ways differ in: per step, sums of `elements` numbers at up to four places and 50 roundings."""
    return 2 * steps * (4 * elements + 50) * 16 * 2.0**-53


def stepped(make: Make, theta: Tensor, gradients: Iterable[Tensor], lrs: Sequence[float] = ()) -> list[Tensor]:
    """A parameter after each of the steps with these gradients, and with these rates, if they are given."""
    theta, found = theta.clone(), []
    optimizer = make([theta])
    for step, g in enumerate(gradients):
        theta.grad, optimizer.lr = g.clone(), (lrs or [optimizer.lr] * (step + 1))[step]
        optimizer.step()
        found.append(theta.clone())
    return found


def draw(world: World, shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Between 0.5 and 2 in size, of either sign; in 64ths, so that sums over ranks are exact."""
    generator = torch.Generator().manual_seed(seed)
    sizes, signs = torch.randint(32, 129, shape, generator=generator), torch.randint(2, shape, generator=generator)
    return (sizes / 64 * (2 * signs - 1)).to(world.device, dtype)


def parameters(world: World, shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """The same on all ranks."""
    return [draw(world, shape, 1000 + number, dtype) for number, shape in enumerate(shapes)]


def train(world: World, make: Make, shapes=SHAPES, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Parameters after five steps."""
    thetas = parameters(world, shapes, dtype)
    optimizer = make(thetas)
    for step in range(5):
        for number, theta in enumerate(thetas):
            theta.grad = draw(world, theta.shape, 100 * step + number, dtype)
        optimizer.step()
    return thetas


def held(rows: Rows, world: World, make: Make, predict: Callable[..., int], formula: str, shapes=SHAPES, more=0):
    """Claim the bytes of states after a step in float32: of all shapes together, and of each by itself."""
    each = ", ".join("×".join(map(str, shape)) for shape in shapes)
    for some in (shapes, *((shape,) for shape in shapes)):
        thetas = parameters(world, some, torch.float32)
        for theta in thetas:
            theta.grad = torch.ones_like(theta)
        optimizer = make(thetas)
        optimizer.step()
        what = f"bytes of states in float32, tensors of {each}; of each of them by itself"
        rows.add(what, formula, sum(map(predict, some)) + more, storage_bytes(tensors(optimizer)), case=str(some))


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in lists, tuples and attributes, without the parameters themselves."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif hasattr(value, "parameters"):
        yield from tensors([one for name, one in vars(value).items() if name != "parameters"])


# ---- under ZeRO-1 ----


class Run(NamedTuple):
    """Parameters under ZeRO-1 and on one device, the sum of all steps' largest changes, and what was sent."""

    parameters: list[Tensor]
    right: list[Tensor]
    path: float
    ledger: Ledger


def under_zero1(world: World, wrap: Callable[[nn.Module], Any], make: Make, shapes=SHAPES) -> Run:
    """Three steps with gradients of each rank's own, and the same with their means on one device."""
    module = nn.ParameterList([nn.Parameter(theta) for theta in parameters(world, shapes)])
    model, right, path, ledger = wrap(module), parameters(world, shapes), 0.0, Ledger()
    optimizer = make(right)
    for step in range(STEPS):
        before = [theta.clone() for theta in right]
        for number, (each, theta) in enumerate(zip(module, right, strict=True)):
            drawn = [draw(world, each.shape, 10_000 * rank + 100 * step + number) for rank in range(1, world.size + 1)]
            # n times as large, so that their mean is the sum of what was drawn, without a rounding.
            (world.size * drawn[world.rank] * each).sum().backward()
            theta.grad = torch.stack(drawn).sum(0)
        with ledger:
            model.synchronize()
            model.step()
        model.zero_grad()
        optimizer.step()
        path += max(float((a - b).abs().max()) for a, b in zip(right, before, strict=True))
    return Run([each.detach() for each in module], right, path, ledger)


def roundings(run: Run, per_step: float) -> float:
    """The most by which both ways may differ, if each step is `per_step` · 2⁻⁵³ of its length off.

    Twice that allows for what earlier differences add to later steps, and 2u of a parameter for each subtraction.
    """
    size = max(float(theta.abs().max()) for theta in run.right) + run.path
    return (2 * STEPS * size + 2 * per_step * run.path) * 2.0**-53
