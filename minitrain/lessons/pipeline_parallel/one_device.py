"""What the lessons share: a small GPT, micro-batches for it, the gradients of one device, and a stage that is observed.

A small form has no place for instruments. So the stage itself, which is passed in, lets virtual time pass and counts
graphs: the small form is observed from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from minitrain.comm import VirtualClock, World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.full.actions import Kind
from minitrain.pipeline_parallel.splitting import Stage

SEQ, SAMPLES, VOCABULARY, HIDDEN = 8, 2, 61, 16
ACTIVATIONS = 4 * SAMPLES * SEQ * HIDDEN  # A: bytes of a micro-batch between two stages, and of their gradient
FORWARD, BACKWARD = 1.0, 2.0  # virtual seconds of a stage


def gpt(world: World, blocks: int) -> GPT:
    """A GPT whose gradients have the same bits each time; fused attention on a GPU adds in any order."""
    sizes = {"vocabulary": VOCABULARY, "positions": SEQ, "layers": blocks, "hidden": HIDDEN, "heads": 2}
    return GPT(GPTConfig(**sizes, tied=False, attention="plain"), seed=0).to(world.device)


def tokens(world: World, microbatches: int) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and targets of each micro-batch, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    shape = (2, microbatches, SAMPLES, SEQ)
    inputs, targets = torch.randint(VOCABULARY, shape, generator=generator).to(world.device)
    return list(inputs), list(targets)


class OneDevice:
    """The mean loss and all gradients of one device that takes the micro-batches one after another.

    A pipeline has the same bits: the same operations work on the same numbers, and every stage takes its backwards in
    rising order of micro-batches, so that the sums over micro-batches are made in one order, too.

    Args:
        model: Its gradients are taken away again.
        inputs: The micro-batches.
        targets: What each should predict.
    """

    def __init__(self, model: GPT, inputs: list[Tensor], targets: list[Tensor]):
        self.model, self.inputs, self.targets = model, inputs, targets
        self.loss = torch.zeros((), device=inputs[0].device)
        for x, target in zip(inputs, targets, strict=True):
            part = model.loss(model(x)[0], target) / len(inputs)
            part.backward()
            self.loss += part.detach()
        self.gradients = {name: parameter.grad for name, parameter in model.named_parameters(remove_duplicate=False)}
        model.zero_grad()

    def unlike(self, stages: Sequence[Stage], loss: Tensor | None) -> int:
        """How many elements of these stages' gradients are other numbers here; 1 more if the loss is."""
        different = int(loss is not None and bool(loss != self.loss))
        for name, parameter in (pair for stage in stages for pair in stage.named_in_model()):
            expected = self.gradients[name]
            assert expected is not None
            different += expected.numel() if parameter.grad is None else int((parameter.grad != expected).sum())
        return different


class Observed(nn.Module):
    """A stage that counts its live graphs, and whose forward and backward take virtual time.

    Open its `clock` around a step; `most` graphs were alive at once.
    """

    def __init__(self, stage: nn.Module, number: int = 0):
        super().__init__()
        self.stage, self.number, self.clock = stage, number, VirtualClock()
        self.graphs, self.most, self.micro_batches = WeakSet[Any](), 0, 0
        self.updates: Tensor | None = None  # `versions.Watched` counts updates with one weight more

    def forward(self, *inputs: Tensor) -> Tensor:
        number, self.micro_batches = self.micro_batches, self.micro_batches + 1
        self.note("F", number, self.updates)
        backward = partial(self.note, "B", number, self.updates)
        y = _Called.apply(self.stage(*inputs), self.updates, backward)
        self.graphs.add(backward)  # only the graph refers to it, so it lives as long
        self.most = max(self.most, len(self.graphs))
        return y

    def note(self, kind: Kind, number: int, updates: Any) -> Tensor | None:
        """An action begins; returns the gradient of `updates`."""
        seconds, name = (FORWARD, "forward") if kind == "F" else (BACKWARD, "backward")
        self.clock.work(seconds, f"{self.number}{kind}{number}", name)
        return None


class _Called(torch.autograd.Function):
    """Passes an output on. When its backward begins, `called` is called, and returns the gradient of `updates`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, updates: Tensor | None, called: Callable[[], Tensor | None]) -> Tensor:
        ctx.called = called
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        return gradients[0], ctx.called(), None
