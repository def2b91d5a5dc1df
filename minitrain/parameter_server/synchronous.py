"""The synchronous parameter server: rank 0 keeps the parameters, all other ranks compute gradients, in lockstep.

**Idea.** In each step every worker pulls the parameters, computes the gradient of its part of the batch, and pushes it
to the server. The server waits for all pushes and steps the parameters with their mean. Workers never talk to each
other.

**Source.** Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", §3.2 and §3.5.
**Sent.** Per step, S bytes of parameters to each of the n workers, and S bytes of gradients from each worker.
**Cost.** 2nS bytes through the server's link. The server holds parameters, optimizer states, the mean, and one push; a
worker holds parameters and gradients, and while it pushes, a flat copy of the gradients.
The full form, `minitrain.parameter_server.full.synchronous`, adds several servers, frozen and unused parameters,
buffers, several dtypes, pushes that are refused, and checks.
Also called bulk synchronous parallel (BSP), centralized training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from minitrain.comm.messages import Group, rank_and_size, receive, send

MakeOptimizer = Callable[[Any], Any]  # parameters -> optimizer, for example `partial(SGD, lr=0.1)`
SERVER = 0


class Server:
    """Rank 0, which steps the parameters: `serve(steps)`, and once more `answer()` if workers pull the result."""

    def __init__(self, module: nn.Module, make_optimizer: MakeOptimizer, group: Group = None):
        rank, ranks = rank_and_size(group)
        assert rank == SERVER and ranks > 1, "rank 0 serves, and all other ranks are workers"
        self.group, self.workers = group, range(1, ranks)
        self.flat = flatten(module)  # [elements]
        self.mean = torch.zeros_like(self.flat)  # [elements]
        self.pushed = torch.empty_like(self.flat)  # [elements]
        # Only the server steps, so only the server has optimizer states.
        self.optimizer = make_optimizer(module.parameters())
        # Gradients are views of the mean: what `collect` writes there, the optimizer reads.
        set_gradients(module, self.mean)

    def serve(self, steps: int) -> None:
        """Serve this number of steps of every worker."""
        for _ in range(steps):
            self.answer()
            self.collect()
            self.optimizer.step()

    def answer(self) -> None:
        """Send the parameters to every worker. No request is needed, because every step begins with a pull."""
        # All sends start at once; parameters must not change before all are done.
        for handle in [send(self.flat, worker, self.group) for worker in self.workers]:
            handle.wait()

    def collect(self) -> None:
        """Receive a push from every worker; their mean becomes the gradient."""
        self.mean.zero_()
        for worker in self.workers:
            # In the order of ranks, whichever push comes first: additions in another order
            # round differently, and a run could not be repeated bit by bit.
            receive(self.pushed, worker, self.group).wait()
            self.mean += self.pushed
        self.mean /= len(self.workers)


class Worker:
    """Any other rank. A step is `pull()`, forward, backward, `push()`, `module.zero_grad()`; there is no optimizer."""

    def __init__(self, module: nn.Module, group: Group = None):
        assert rank_and_size(group)[0] != SERVER, "rank 0 is the server"
        self.module, self.group = module, group
        self.flat = flatten(module)  # [elements]

    def pull(self) -> None:
        # The server's parameters arrive in `flat`, of which this module's are views.
        receive(self.flat, SERVER, self.group).wait()

    def push(self) -> None:
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])  # [elements]
        assert len(flat) == len(self.flat), "a parameter is unused: use the full form"
        # One message for all gradients; one per parameter would cost a latency each.
        send(flat, SERVER, self.group).wait()


def flatten(module: nn.Module) -> Tensor:
    """Copy all parameters into one tensor, of which they become views."""
    assert all(p.requires_grad for p in module.parameters()), "a parameter is frozen: use the full form"
    assert not list(module.buffers()), "each worker would keep buffers of its own: use the full form"
    assert len({p.dtype for p in module.parameters()}) == 1, "a flat tensor has one dtype"
    flat = parameters_to_vector(module.parameters()).detach()  # [elements]
    vector_to_parameters(flat, module.parameters())
    return flat


def set_gradients(module: nn.Module, flat: Tensor) -> None:
    """Cut a flat tensor into views, and make these the gradients of the parameters."""
    parameters = list(module.parameters())
    parts = flat.split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter)


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
