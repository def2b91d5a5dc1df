"""Small models of every kind that ZeRO must get right, a step as its user makes it, and torch's DDP to compare with."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.collectives.full import native
from minitrain.comm import axes
from minitrain.comm.comm import Comm
from minitrain.costs import zero as costs
from minitrain.zero import HybridZero3
from tests.data_parallel.models import Branches, Mixed, gpt, tokens

__all__ = ["Branches", "Few", "Mixed", "ddp", "gpt", "part", "same", "same_weights", "train"]


class Few(nn.Module):
    """Fewer elements than ranks: one weight, a bias without dimensions, and nothing else."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        return x * self.weight + self.bias


def wrap(world, form, module, optimizer_class=torch.optim.AdamW, collectives=native, **options):
    """A module in a full form over all ranks; hybrid sharding takes two nodes, or three of one rank each."""
    group = None
    if form is HybridZero3:
        mesh = axes(node=3 if world.size == 3 else 2, local=world.size // 2 or 1)
        group, options["replicas"] = mesh.get_group("local"), Comm(mesh.get_group("node"), collectives)
    return form(module, optimizer_class, Comm(group, collectives), **{"lr": 0.01, **options})


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


def ddp(module, optimizer, rank, **choices):
    """The same steps with torch's DDP; `optimizer` has the module's parameters."""
    model = DistributedDataParallel(module, find_unused_parameters=True)
    model.synchronize, model.step, model.zero_grad = (lambda: None), optimizer.step, optimizer.zero_grad
    model.clip_grad_norm = lambda clip: nn.utils.clip_grad_norm_(module.parameters(), clip)
    return train(model, rank, **choices)


def same(model, reference, tolerance=1e-11):
    """What all ranks hold together are the parameters of a module on one device."""
    full = model.full_state_dict()
    assert list(full) == list(reference.state_dict())
    compare(full, reference, tolerance)


def same_weights(module, reference, tolerance=1e-11):
    """The same parameters by name."""
    compare(dict(module.named_parameters()), reference, tolerance)


def compare(found, reference, tolerance):
    for name, value in reference.named_parameters():
        torch.testing.assert_close(
            found[name].detach(), value.detach(), rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def twins(make):
    """Two equal models."""
    model = make()
    return model, copy.deepcopy(model)
