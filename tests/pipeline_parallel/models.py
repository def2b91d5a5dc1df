"""Stages of every kind that a pipeline must carry, and the one device that it is compared with."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.models import GPT, GPTConfig
from minitrain.pipeline_parallel import splitting
from minitrain.pipeline_parallel.full import tied

SEQ = 5


def gpt(blocks: int, **choices) -> GPT:
    """A GPT whose parameters have odd sizes, in float64, so that only the order of additions makes a difference."""
    sizes = {"vocabulary": 17, "positions": SEQ, "layers": blocks, "hidden": 6, "heads": 2, "tied": False}
    return GPT(GPTConfig(**{**sizes, **choices}), seed=0).double()


def tokens(microbatches: int, step: int = 0, samples: int = 2):
    """Inputs and targets of each micro-batch."""
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randint(17, (2, microbatches, samples, SEQ), generator=generator)
    return list(inputs), list(targets)


def stages_of(model: nn.Module, schedule, rank: int):
    """This rank's stages, and what is tied among all."""
    parts = splitting.split(model, splitting.evenly(model, schedule.stages))
    return [parts[stage] for stage in schedule.stages_of(rank)], tied.ties(parts)


def accumulate(model: GPT, inputs, targets):
    """One device: the same micro-batches one after another."""
    mean = torch.zeros((), dtype=torch.float64)
    for x, target in zip(inputs, targets, strict=True):
        loss = model.loss(model(x)[0], target) / len(inputs)
        loss.backward()
        mean += loss.detach()
    return mean


class Mixed(nn.Module):
    """Takes and gives tensors of all kinds: some that need a gradient, some that cannot have one, and an empty one.

    Its second output has gaps in memory; its third, whole numbers; its fourth, no gradient though it could have one;
    its fifth is used by nobody.
    """

    def __init__(self, width: int, frozen: bool = False):
        super().__init__()
        self.inner = nn.Linear(width, width).double()
        self.outer = nn.Linear(width, width, bias=False).double()
        self.requires_grad_(not frozen)

    def forward(self, x, turned, numbers, fixed, spare, empty):
        y = torch.tanh(self.inner(x)) + fixed * numbers.unsqueeze(-1)
        z = self.outer(turned.t()).t()
        return y + z.mean(), z, numbers + 1, fixed * 2, y.float(), empty


def mixed_inputs(samples: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x, turned, fixed = torch.rand(3, samples, 3, generator=generator, dtype=torch.float64)
    return x, turned.t(), torch.arange(samples), fixed, torch.zeros(2), torch.zeros(0, 3, dtype=torch.float64)


def mixed_loss(outputs, target):
    return (outputs[0] * target).mean() + outputs[1].square().mean() + outputs[3].sum() * 0


def chain(layers, inputs):
    """One device: layers of several tensors one after another."""
    for layer in layers:
        inputs = layer(*inputs)
    return inputs
