"""A small GPT, micro-batches for it, and the loss and gradients of one device, with which lessons compare theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.pipeline_parallel.splitting import Stage

SEQ, SAMPLES, VOCABULARY, HIDDEN = 8, 2, 61, 16
ACTIVATIONS = 4 * SAMPLES * SEQ * HIDDEN  # A: bytes of a micro-batch between two stages, and of their gradient


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
        self.gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()

    def unlike(self, stages: Sequence[Stage], loss: Tensor | None) -> int:
        """How many elements of these stages' gradients are other numbers here; 1 more if the loss is."""
        different = int(loss is not None and bool(loss != self.loss))
        for name, parameter in (pair for stage in stages for pair in stage.named_in_model()):
            expected = self.gradients[name]
            assert expected is not None
            different += expected.numel() if parameter.grad is None else int((parameter.grad != expected).sum())
        return different
