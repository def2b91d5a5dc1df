"""Steps that several tests make."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.lessons.optimizers import common as lesson
from minitrain.lessons.optimizers.lamb import Layers
from minitrain.zero.stage1 import Zero1


def step(optimizer, *gradients):
    """One step with these gradients."""
    for parameter, gradient in zip(optimizer.parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    optimizer.step()


def flat(world, make, shapes):
    """Whether three steps of the small ZeRO-1's flat shards have the bits of one device."""
    run = lesson.under_zero1(world, lambda module: Zero1(module, make), make, shapes)
    return all(map(torch.equal, run.parameters, run.right))


def parts(world, make, sharded):
    """How far three steps of parts of layers are from those of whole ones, and the all-reduces in them."""
    inside = partial(Layers, partial(make, sharded=sharded), world.rank)
    run = lesson.under_zero1(world, lambda module: Zero1(module, inside), make)
    off = max(float((a - b).abs().max()) for a, b in zip(run.parameters, run.right, strict=True))
    return off < 1e-12, run.ledger.calls("all_reduce")
