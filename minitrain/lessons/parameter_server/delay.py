"""Stale gradients on the simplest model, whose largest learning rate is known: it falls as the delay grows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.costs import staleness as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.parameter_server.full import asynchronous
from minitrain.parameter_server.full.roles import Roles


class Point(nn.Module):
    """One number x, to be brought to 0.

    Args:
        curvature: λ.
    """

    def __init__(self, curvature: float) -> None:
        super().__init__()
        self.curvature = curvature
        self.x = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self) -> Float[Tensor, ""]:
        """λx²/2."""
        return self.curvature * self.x.square() / 2


def descend(
    world: World, roles: Roles, rate: float, rounds: int, curvature: float = 1.0
) -> tuple[list[float], list[int]]:
    """Workers of equal speed bring down λx²/2 without a bound.

    They come in turns: each begins a virtual second after the one before it and takes n seconds for a step. So each
    gradient misses one update of every other worker, τ = n − 1 of them, but for the first round.

    Args:
        world: This rank.
        roles: One server, n workers.
        rate: The learning rate.
        rounds: Steps of each worker.
        curvature: λ.

    Returns:
        x at the start and after each update, and each gradient's staleness.
    """
    point = Point(curvature).to(world.device)
    found, stale = [1.0], []
    with VirtualClock() as clock:
        if roles.serves:
            server = asynchronous.AsynchronousServer(point, lambda p: torch.optim.SGD(p, lr=rate), roles, None)
            server.serve(after=lambda _: found.append(point.x.item()))
            stale = [update.staleness for update in server.updates]
        else:
            worker = asynchronous.AsynchronousWorker(point, roles)
            clock.work(float(roles.workers.index(dist.get_rank(roles.group))))
            for _ in range(rounds):
                worker.pull()
                point().backward()
                clock.work(float(len(roles.workers)))
                worker.push()
            worker.leave()
    return max(gather_objects((found, stale)), key=lambda pair: len(pair[0]))


def delay_claims(world: World, roles: Roles) -> list[Claim]:
    """Claims on the largest learning rate that a delay allows: halving finds the point from which on |x| grows."""
    workers, curvature, rounds = len(roles.workers), 4.0, 30
    stale: list[int] = []
    low, high = 0.0, 4.0 / curvature  # twice what descent without delay can bear
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        found, stale = descend(world, roles, middle, rounds, curvature)
        late, later = (max(map(abs, found[-turns * workers :][: 10 * workers])) for turns in (20, 10))
        low, high = (low, middle) if later > late else (middle, high)
    seen = {
        which: Claim("", "τ = n−1", workers - 1, pick(stale[workers:]), "1", "derived")
        for which, pick in (("least", min), ("most", max))
    }
    limit, what = (
        costs.largest_rate(curvature, workers - 1),
        "largest learning rate that converges on λx²/2 with delay τ",
    )
    formula, source = "2/λ · sin(π/(2(2τ+1)))", "Levin & May 1976"
    return [
        fold("workers in turns: staleness of a gradient", seen),
        Claim(what, formula, limit, (low + high) / 2, "1", source, "compared", tolerance=0.01),
    ]
