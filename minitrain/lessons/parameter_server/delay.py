"""Stale gradients on the simplest model, whose largest learning rate is known: it falls as the delay grows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.parameter_server.full import asynchronous
from minitrain.parameter_server.full.roles import Roles


def descend(world: World, roles: Roles, rate: float, rounds: int) -> tuple[list[float], list[int]]:
    """Workers of equal speed bring down x²/2 without a bound: x at the start and after each update, and staleness.

    They come in turns: each begins a virtual second after the one before it and takes n seconds for a step. So each
    gradient misses one update of every other worker, τ = n − 1 of them, but for the first round.
    """
    point = nn.ParameterList([torch.ones((), dtype=torch.float64)]).to(world.device)
    found, stale = [1.0], []
    with VirtualClock() as clock:
        if roles.serves:
            server = asynchronous.AsynchronousServer(point, lambda p: torch.optim.SGD(p, lr=rate), roles, None)
            server.serve(after=lambda _: found.append(point[0].item()))
            stale = [update.staleness for update in server.updates]
        else:
            worker = asynchronous.AsynchronousWorker(point, roles)
            clock.work(float(roles.workers.index(dist.get_rank(roles.group))))
            for _ in range(rounds):
                worker.pull()
                (point[0].square() / 2).backward()
                clock.work(float(len(roles.workers)))
                worker.push()
            worker.leave()
    return max(gather_objects((found, stale)), key=lambda pair: len(pair[0]))
