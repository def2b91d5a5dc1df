"""A small GPT that is trained by servers and workers, and the bytes of a step: for the lesson and for notebook 18."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.data_parallel import DataParallel
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.parameter_server.full.roles import Roles
from minitrain.parameter_server.full.synchronous import Server, Worker

ADAMW = partial(torch.optim.AdamW, lr=0.01)
COMPUTE = 2.0**-10  # virtual seconds of forward and backward


def small_gpt(world: World, seed: int) -> GPT:
    """A GPT whose gradients have the same bits each time; fused attention on a GPU adds in any order."""
    config = GPTConfig(vocabulary=61, positions=16, layers=1, hidden=32, heads=2, attention="plain")
    return GPT(config, seed=seed).to(world.device)


def backward(world: World, module: nn.Module, place: int, step: int) -> None:
    """Forward and backward on the part of a step's batch that falls to the worker `place`, counted from 0."""
    generator = torch.Generator().manual_seed(1000 * step + place)
    inputs, targets = torch.randint(61, (2, 2, 16), generator=generator).to(world.device)
    module(inputs, targets)[1].backward()


def full_form(module: nn.Module, roles: Roles) -> Any:
    """This rank's part in the training of a module, whichever it is."""
    return Server(module, ADAMW, roles) if roles.serves else Worker(module, roles)


def train(world: World, module: nn.Module, part: Any, roles: Roles, steps: int, clock: Any = None) -> None:
    """Train with this rank's part, a server or a worker of either form; `clock` is a virtual one."""
    if roles.serves:
        part.serve(steps)
        return
    for step in range(steps):
        part.pull()
        backward(world, module, roles.workers.index(world.rank), step)
        if clock is not None:
            clock.work(COMPUTE, "gradient")
        part.push()
        module.zero_grad()


def counted(world: World, roles: Roles) -> tuple[Ledger, nn.Module]:
    """What this rank sends and receives in a step of the full form, counted message by message."""
    module = small_gpt(world, world.rank)  # every rank draws other weights; the first server's are what all start from
    part = full_form(module, roles)
    with Ledger() as ledger:
        train(world, module, part, roles, 1)
    return ledger, module


def counted_in_ring(world: World, roles: Roles) -> int:
    """Bytes through the busiest link when the workers all-reduce their gradients around a ring instead."""
    group, through = new_group(list(roles.workers)), 0
    if not roles.serves:
        assert isinstance(group, dist.ProcessGroup)
        model = DataParallel(small_gpt(world, 0), Comm(group, ring))
        with Ledger() as ledger:
            backward(world, model, roles.workers.index(world.rank), 0)
            model.synchronize()
        through = ledger.sent + ledger.received
    return max(gather_objects(through))
