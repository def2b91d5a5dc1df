"""Small models of every kind that ZeRO must get right, a step as its user makes it, and torch's DDP to compare with."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.costs import zero as costs
from tests.data_parallel.models import Branches, Mixed, gpt, tokens

__all__ = ["Branches", "Few", "Mixed", "Normalised", "ddp", "gpt", "lines", "part", "same_weights", "tokens", "train"]


class Few(nn.Module):
    """Fewer elements than ranks: one weight, a bias without dimensions, and nothing else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        return (x * self.weight + self.bias).square().mean()


class Normalised(nn.Module):
    """Buffers: BatchNorm's statistics. Between two layers of a Sequential, so that there are units."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))

    def forward(self, x):
        return self.layers(x).square().mean()


def part(rank, step=0, samples=1):
    """The part of a step's batch that falls to `rank`."""
    return tokens(samples, 10 * step + rank)


def lines(model):
    """A full form's lines in the form of `costs`."""
    return [
        costs.Line(line.partition.elements, line.flat.element_size(), len(line.parameters), line.trainable)
        for line in model.lines
    ]


def train(model, rank, steps=3, clip=None, micro_batches=1):
    """Steps of a sharded GPT, as its user writes them."""
    norms = []
    for step in range(steps):
        for micro_batch in range(micro_batches - 1):
            with getattr(model, "no_sync", nullcontext)():  # small forms don't need it
                (model(*part(rank, step + 100 * micro_batch + 100))[1] / micro_batches).backward()
        (model(*part(rank, step))[1] / micro_batches).backward()
        model.synchronize()
        if clip is not None:
            norms.append(float(model.clip_grad_norm(clip)))
        model.step()
        model.zero_grad()
    return norms


def ddp(module, optimizer, rank, steps=3, clip=None, micro_batches=1):
    """The same steps with torch's DDP; `optimizer` has the module's parameters."""
    model = DistributedDataParallel(module, find_unused_parameters=True)
    norms = []
    for step in range(steps):
        for micro_batch in range(micro_batches - 1):
            with model.no_sync():
                (model(*part(rank, step + 100 * micro_batch + 100))[1] / micro_batches).backward()
        (model(*part(rank, step))[1] / micro_batches).backward()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(module.parameters(), clip)))
        optimizer.step()
        optimizer.zero_grad()
    return norms


def same_weights(module, reference, tolerance=1e-11):
    """The same parameters by name."""
    expected = dict(reference.named_parameters())
    for name, found in module.named_parameters():
        message = f"{name}: "
        torch.testing.assert_close(
            found.detach(),
            expected[name].detach(),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda m, name=message: name + m,
        )


def twins(make):
    """Two equal models."""
    model = make()
    return model, copy.deepcopy(model)
