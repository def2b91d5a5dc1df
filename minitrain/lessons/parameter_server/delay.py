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
from minitrain.parameter_server.full import asynchronous
from minitrain.parameter_server.full.roles import Roles


class Point(nn.Module):
    """One number x, to be brought to 0."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self) -> Float[Tensor, ""]:
        """x²/2: curvature 1."""
        return self.x.square() / 2


def descend(world: World, roles: Roles, rate: float, rounds: int) -> tuple[list[float], list[int]]:
    """Workers of equal speed bring down x²/2 without a bound.

    They come in turns: each begins a virtual second after the one before it and takes n seconds for a step. So each
    gradient misses one update of every other worker, τ = n − 1 of them, but for the first round.

    Args:
        world: This rank.
        roles: One server, n workers.
        rate: The learning rate.
        rounds: Steps of each worker.

    Returns:
        x at the start and after each update, and each gradient's staleness.
    """
    point = Point().to(world.device)
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
    """Claims on the largest learning rate that a delay allows: below it |x| falls, above it grows."""
    workers = len(roles.workers)
    limit = costs.largest_rate(1.0, workers - 1)
    claims = []
    for part, relation in ((0.8, "<="), (1.25, ">=")):
        found, stale = descend(world, roles, part * limit, rounds=30)
        if not claims:
            least = min(stale[workers:])
            claims.append(Claim("workers in turns: staleness of a gradient", "τ = n−1", workers - 1, least, "1"))
        measured = max(map(abs, found[-2 * workers :]))
        what = f"x²/2 with a delay τ, {part:g} of the largest learning rate: |x| at the end"
        formula = "|x| at the start; largest rate 2 sin(π/(2(2τ+1)))"
        claims.append(
            Claim(what, formula, 1.0, measured, "1", "Levin & May 1976", "compared", relation)  # type: ignore[arg-type]
        )
    return claims
