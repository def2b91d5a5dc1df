"""A small GPT that is trained by servers, and the one device that it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from minitrain.comm import World
from minitrain.lessons.data_parallel.common import small_gpt, tokens
from minitrain.parameter_server.full.roles import Roles
from minitrain.parameter_server.full.synchronous import MakeOptimizer, Server, Worker

LAYERS, HIDDEN = 1, 32
OPTIMIZERS = {
    "SGD with momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "AdamW": partial(torch.optim.AdamW, lr=0.01),
}
Spoil = Callable[[int, int], bool]
"""Whether a worker, counted from 0, has a NaN in its gradients of a step."""


def nobody(worker: int, step: int) -> bool:
    """All gradients are finite."""
    return False


class Trained:
    """A small GPT that is trained by servers: this rank's part in it, whichever that is.

    Args:
        world: This rank.
        roles: The servers and the workers.
        make_optimizer: The servers'.

    Attributes:
        module: The parameters; on a server only its share is up to date.
        server: This rank's, if it is one.
        worker: This rank's, if it is one.
    """

    def __init__(self, world: World, roles: Roles, make_optimizer: MakeOptimizer):
        # Every rank draws other weights; the first server's are what all start from.
        self.world, self.roles, self.module = world, roles, small_gpt(world, world.rank, LAYERS, HIDDEN)
        self.server = Server(self.module, make_optimizer, roles) if roles.serves else None
        self.worker = None if roles.serves else Worker(self.module, roles)

    def steps(self, count: int, spoil: Spoil = nobody) -> None:
        """Train on; `spoil(worker, step)`, worker counted from 0, says who has a NaN in its gradients."""
        if self.server is not None:
            self.server.serve(count)
            return
        assert self.worker is not None
        place = self.roles.workers.index(self.world.rank)
        for _ in range(count):
            step = self.worker.step
            self.worker.pull()
            backward(self.world, self.module, place, step)
            if spoil(place, step):
                next(self.module.parameters()).grad[0] = torch.nan  # type: ignore[index]
            self.worker.push()
            self.module.zero_grad()

    def finish(self) -> None:
        """A last pull, so that workers have what the servers have."""
        if self.server is not None:
            self.server.answer()
        else:
            assert self.worker is not None
            self.worker.pull()

    def kept(self) -> dict[str, nn.Parameter]:
        """The parameters that are up to date on this rank: a server's share, or all."""
        if self.server is None:
            return dict(self.module.named_parameters())
        return {name: parameter for parcel in self.server.parcels for name, parameter in parcel.parameters.items()}


def backward(world: World, module: nn.Module, place: int, step: int) -> None:
    """Forward and backward on the part of a step's batch that falls to the worker `place`."""
    _, loss = module(*tokens(world, place, step))
    loss.backward()


def one_device(world: World, name: str, steps: int, workers: int, spoil: Spoil = nobody) -> nn.Module:
    """The small GPT after some steps on one device, which adds up the workers' gradients in their order.

    Args:
        world: This rank.
        name: Of the optimizer.
        steps: Their number.
        workers: Parts of a step's batch.
        spoil: Whose part is left out of a step.
    """
    module = small_gpt(world, 0, LAYERS, HIDDEN)
    optimizer = OPTIMIZERS[name](module.parameters())
    for step in range(steps):
        taken = [worker for worker in range(workers) if not spoil(worker, step)]
        for worker in taken:
            backward(world, module, worker, step)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(len(taken))
        optimizer.step()
        optimizer.zero_grad()
    return module


def unlike(trained: Trained, reference: nn.Module) -> int:
    """Elements of this rank's parameters that differ from those of `reference`."""
    expected = dict(reference.named_parameters())
    return sum(int((parameter != expected[name]).sum()) for name, parameter in trained.kept().items())
