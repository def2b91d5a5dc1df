"""The lesson of `minitrain.zero.step_in_backward`: bytes of gradients, equal weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from minitrain.comm import Peak, World
from minitrain.lessons.claims import Claim
from minitrain.lessons.rows import Rows
from minitrain.zero.step_in_backward import StepInBackward

WIDTHS = (64, 256, 128, 128, 32)  # of a chain of layers, the second of which is the largest
STEPS = 3


class After(nn.Module):
    """The usual way, with the same verbs: backward first, and then the step of all parameters."""

    def __init__(self, module: nn.Module, optimizer_class: Any, **options: Any):
        super().__init__()
        self.module, self.optimizer = module, optimizer_class(module.parameters(), **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)

    def step(self) -> None:
        self.optimizer.step()
        self.module.zero_grad()


def demo(world: World) -> list[Claim]:
    """Steps each parameter inside backward; the table shows bytes of gradients, and the same weights as afterwards."""
    rows = Rows("Lv et al. 2023, §3.2")
    sizes = [4 * one * other for one, other in zip(WIDTHS, WIDTHS[1:], strict=False)]
    # Gradients of activations, of a single sample: that of a layer's output, and that of its input.
    slack = {"absolute": 4 * 2 * max(WIDTHS) + (0 if world.device.type == "cpu" else 512 * len(WIDTHS))}
    what = "most bytes of gradients at once, stepped after backward"
    rows.add(what, "wΨ", sum(sizes), most_gradients(world, After), **slack)
    what = "most bytes of gradients at once, stepped inside backward: the largest layer's"
    rows.add(what, "w · largest layer", max(sizes), most_gradients(world, StepInBackward), **slack)

    ways: dict[str, Any] = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}
    what = f"weights that differ after {STEPS} steps from those stepped after backward: {', '.join(ways)}"
    for name, optimizer_class in ways.items():
        inside, after = (trained(world, way(chain(world), optimizer_class, lr=0.1)) for way in (StepInBackward, After))
        rows.equal(what, inside, after, "θ_inside = θ_after", case=name)
    return rows.claims()


def chain(world: World) -> nn.Sequential:
    """Layers without biases, the same each time."""
    torch.manual_seed(0)
    layers = [nn.Linear(one, other, bias=False) for one, other in zip(WIDTHS, WIDTHS[1:], strict=False)]
    return nn.Sequential(*layers).to(world.device)


def loss(world: World, model: nn.Module, seed: int = 0) -> Tensor:
    """Of a sample of this rank's own."""
    x = torch.randn(1, WIDTHS[0], generator=torch.Generator().manual_seed(100 * world.rank + seed))
    return model(x.to(world.device)).square().sum()


def most_gradients(world: World, way: Any) -> int:
    """The most bytes that a backward adds to what is held after forward."""
    before = loss(world, way(chain(world), torch.optim.SGD, lr=0.1))
    with Peak(world.device) as peak:
        before.backward()
    return peak.bytes


def trained(world: World, model: Any) -> list[Tensor]:
    """Weights after some steps."""
    for seed in range(STEPS):
        loss(world, model, seed).backward()
        model.step()
    return list(model.module.parameters())
