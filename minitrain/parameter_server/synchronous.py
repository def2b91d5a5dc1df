"""The synchronous parameter server: rank 0 keeps the parameters, all others compute gradients, in step.

**Idea.** In each step every worker pulls the parameters, computes the gradient of its part of the batch, and pushes it.
The server waits for all of them, and their mean moves the parameters. Workers never talk to each other.

**Source.** Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", §3.2 and §3.5.
**Sent.** Per step, S bytes of parameters to each worker and S bytes of gradients from each of the n workers.
**Cost.** 2nS bytes through the server's link. It holds parameters, optimizer states, the mean, and one push; a worker
holds parameters and gradients, and while it pushes, a flat copy of the gradients.
The full form, `minitrain.parameter_server.full.synchronous`, adds several servers, frozen and unused parameters,
buffers, several dtypes, pushes that are refused, and checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minitrain.comm.messages import Group, place, receive, send

MakeOptimizer = Callable[[Any], Any]
SERVER = 0


class Server:
    """Rank 0, which steps the parameters: `serve(steps)`, and `answer()` when all want the result."""

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, group: Group = None):
        rank, ranks = place(group)
        assert rank == SERVER and ranks > 1, "rank 0 serves, and all other ranks are workers"
        self.group, self.workers = group, range(1, ranks)
        self.flat = flatten(module)  # [elements]
        self.mean = torch.zeros_like(self.flat)  # [elements]
        self.pushed = torch.empty_like(self.flat)  # [elements]
        # Only the server steps, so the optimizer's states exist once.
        self.optimizer = make_optimizer(module.parameters())
        # Views: once the mean has been computed, the optimizer has its gradients.
        set_gradients(module, self.mean)

    def serve(self, steps: int) -> None:
        """Serve so many steps of every worker."""
        for _ in range(steps):
            self.answer()
            self.collect()
            self.optimizer.step()

    def answer(self) -> None:
        """Serve one pull of every worker. Nobody asks, since all know that it is due."""
        # The same parameters to each worker; they must not change before all have left.
        for handle in [send(self.flat, worker, self.group) for worker in self.workers]:
            handle.wait()

    def collect(self) -> None:
        """Take in every worker's push: the mean becomes the gradient."""
        self.mean.zero_()
        for worker in self.workers:
            # In the workers' order, whoever comes first, so that a run repeats bit by bit.
            receive(self.pushed, worker, self.group).wait()
            self.mean += self.pushed
        self.mean /= len(self.workers)


class Worker:
    """Any other rank. A step is `pull()`, forward and backward, `push()`, and `module.zero_grad()`."""

    def __init__(self, module: nn.Module, group: Group = None):
        assert place(group)[0] != SERVER, "rank 0 is the server"
        self.module, self.group, self.flat = module, group, flatten(module)

    def pull(self) -> None:
        # The server's parameters, straight into the memory of this module's.
        receive(self.flat, SERVER, self.group).wait()

    def push(self) -> None:
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # [elements]
        assert len(flat) == len(self.flat), "a parameter is unused or frozen: use the full form"
        # All gradients in one message.
        send(flat, SERVER, self.group).wait()


def flatten(module: nn.Module) -> Tensor:
    """All parameters in one tensor, of which they become views."""
    assert len({p.dtype for p in module.parameters()}) == 1, "a flat tensor has one dtype"
    flat = parameters_to_vector(module.parameters()).detach()  # [elements]
    vector_to_parameters(flat, module.parameters())
    return flat


def set_gradients(module: nn.Module, flat: Tensor) -> None:
    """Make views of a flat tensor the gradients of the parameters."""
    parameters = list(module.parameters())
    parts = flat.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__.name)
