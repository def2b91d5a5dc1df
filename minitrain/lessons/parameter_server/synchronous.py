"""What the demo of `synchronous` claims: all its rows, of which `traffic` makes those about bytes and time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from minitrain.collectives.full import native
from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.data_parallel import DataParallel
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.data_parallel.common import small_gpt
from minitrain.lessons.parameter_server import small
from minitrain.lessons.parameter_server import traffic as lesson_traffic
from minitrain.lessons.parameter_server.training import (
    HIDDEN,
    LAYERS,
    OPTIMIZERS,
    Trained,
    backward,
    nobody,
    one_device,
    unlike,
)
from minitrain.parameter_server.full.roles import Roles, split_roles
from minitrain.watch.board import Board

DERIVED, ROUNDING = "derived", "Higham 2002, §4.2"

# What is claimed, and its formula.
MEAN = "gradients' distance from data parallelism's, in Σ|gᵣ|/n", "γₙ + γₙ₊₁, γₖ = ku/(1 − ku); 0 for n ≤ 2"
REFUSED = "pushes refused, one of them with a NaN", "1"
IN_ORDER = "((g₁ + g₂) + …)/n"


def claims(world: World, servers: int | None, steps: int) -> list[Claim]:
    """All claims of the demo; see there."""
    if servers is None:
        servers = 2 if world.size > 3 else 1
    if world.size > 1:
        split_roles(min(servers, world.size - 1))  # refuses what no number of ranks would make right
    if world.size <= servers:
        return _too_few(world, servers, steps)
    roles = split_roles(servers)
    rows = [
        *small.claims(world),
        *lesson_traffic.traffic(world),
        *lesson_traffic.placement(world, roles),
        *same_as_one_device(world, roles, steps),
        same_as_data_parallel(world, split_roles(1)),
        lesson_traffic.states(world, roles),
        lesson_traffic.virtual_time(world),
    ]
    trained = Trained(world, roles, OPTIMIZERS["AdamW"])
    trained.steps(1)
    with world.timed("a step of pull, forward, backward, push and update"):
        trained.steps(1)
    return _marked(rows)


def _marked(rows: list[Claim]) -> list[Claim]:
    """The same, of which these are key as well."""
    key = (lesson_traffic.BUSIEST[0], lesson_traffic.BESIDE[0])
    return [replace(row, key=row.key or row.what in key) for row in rows]


def _too_few(world: World, servers: int, steps: int) -> list[Claim]:
    """The rows of `claims` where there are too few ranks."""
    t = lesson_traffic
    rows = [t.LINK, t.MESSAGES, t.BUSIEST, t.BESIDE, t.CROSSING, t.MATCH, t.EVEN, (t.TIGHT, t.EVEN[1]), t.BEST]
    rows += [(_same(steps), IN_ORDER), REFUSED, MEAN, t.STATES, t.TIME]
    more = {MEAN: 3, t.BESIDE: 3, t.CROSSING: 3, t.MATCH: 3, t.LINK: 2, t.MESSAGES: 2, t.BUSIEST: 2, t.TIME: 2}
    return _marked([*small.claims(world), *(Claim.needs_ranks(more.get(row, servers + 1), *row) for row in rows)])


def _same(steps: int) -> str:
    return f"weights that differ from one device's that accumulates the workers' batches, {steps} steps"


def same_as_one_device(world: World, roles: Roles, steps: int) -> list[Claim]:
    """Claims that servers and workers have the weights of one device, to the last bit, also if a push is refused.

    A worker computes g by the operations of one device. One device adds the next part's gradient to `.grad`, the server
    adds the next push to the sum: the same additions in the same order, then the same division. An optimizer that
    treats tensors one by one does the same to a share as to all. A push with a NaN is refused by all servers, and all
    go on as if it had not been made.
    """

    def spoil(place: int, step: int) -> bool:
        return place == len(roles.workers) - 1 and step == 1

    cases, refused = {}, 0
    for case, name, spoiled in (
        ("AdamW", "AdamW", nobody),
        ("SGD with momentum", "SGD with momentum", nobody),
        ("a push refused", "SGD with momentum", spoil),
    ):
        trained = Trained(world, roles, OPTIMIZERS[name])
        trained.steps(max(steps, 2), spoiled)
        trained.finish()
        different = unlike(trained, one_device(world, name, max(steps, 2), len(roles.workers), spoiled))
        cases[case] = Claim("", IN_ORDER, 0, different, "1", DERIVED, "compared")
        refused = max(gather_objects(sum(trained.server.refused.values()) if trained.server is not None else 0))
    return [fold(_same(steps), cases), Claim(*REFUSED, 1, refused, "1", DERIVED)]


def same_as_data_parallel(world: World, roles: Roles) -> Claim:
    """The claim that the servers' mean is that of data parallelism, but for rounding.

    The server makes n−1 additions and a division, data parallelism rounds 1/n, multiplies, and makes n−1 additions in
    whatever order. With u = eps/2 each rounding, they are within γₙ and γₙ₊₁ times Σ|gᵣ|/n of the exact mean, γₖ =
    ku/(1 − ku) (Higham 2002, Lemma 3.1 and §4.2), and within the sum of both of each other. With two workers or one all
    is equal: 1/n is exact, and one addition is the same in either order.
    """
    workers = len(roles.workers)
    if workers < 2:
        return Claim.needs_ranks(3, *MEAN, ROUNDING)
    trained = Trained(world, roles, partial(torch.optim.SGD, lr=0.0))
    trained.steps(1)
    group, reference = new_group(list(roles.workers)), small_gpt(world, 0, LAYERS, HIDDEN)
    if not roles.serves:
        assert isinstance(group, dist.ProcessGroup)
        model = DataParallel(reference, group)
        backward(world, model, roles.workers.index(world.rank), 0)
        model.synchronize()
    else:
        for parameter in reference.parameters():
            parameter.grad = torch.empty_like(parameter)
    mean = torch.cat([_gradient(parameter).flatten() for parameter in reference.parameters()])
    native.broadcast(mean, roles.workers[0], check=False).wait()  # the servers compare, and the workers have it
    worst = 0.0
    if trained.server is not None:
        parts = torch.zeros_like(mean, dtype=torch.float64)  # Σ|gᵣ|/n
        for worker in range(workers):
            reference.zero_grad()
            backward(world, reference, worker, 0)
            parts += torch.cat([_gradient(parameter).flatten().abs() for parameter in reference.parameters()])
        ends = [parameter.numel() for parameter in reference.parameters()]
        rows = zip(dict(reference.named_parameters()), mean.split(ends), (parts / workers).split(ends), strict=True)
        kept = trained.kept()
        for name, theirs, scale in rows:
            if name in kept:
                error = (_gradient(kept[name]).flatten().double() - theirs.double()).abs() / scale
                worst = max(worst, error.nan_to_num(nan=0.0).max().item())  # 0/0 where no part has a gradient
    u = torch.finfo(torch.float32).eps / 2
    bound = sum(k * u / (1 - k * u) for k in (workers, workers + 1)) if workers > 2 else 0.0
    measured = max(gather_objects(worst))
    return Claim(*MEAN, bound, measured, source=ROUNDING, how="compared", relation="<=")


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def lost_push(world: World, limit: float = 2.0) -> str:
    """Break it: the last worker leaves out its second push. What this rank then says, within `limit` seconds.

    The server waits for the push, and all workers wait for the server's next answer: no rank computes a wrong number,
    and none goes on, until the time limit ends each wait. This happens without the checks of ranks, which would notice
    the circle after two seconds, on some ranks a little earlier than on others. It has a group of its own, since a
    receive that ran out of time closes the pair of ranks for good.
    """
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))
    assert isinstance(group, dist.ProcessGroup)
    roles = split_roles(1, group)
    trained = Trained(world, roles, OPTIMIZERS["SGD with momentum"])
    board, Board.current = Board.current, None
    try:
        trained.steps(1)
        if trained.worker is not None and world.rank == roles.workers[-1]:
            trained.worker.pull()
            trained.worker.step += 1  # computes, but does not push
        trained.steps(2)
        seen = "went on"
    except RuntimeError as error:
        seen = str(error).partition(" (")[0]
    finally:
        dist.barrier()  # ranks notice it at different moments; now all of them have
        Board.current = board
    return seen


def demo(world: World, servers: int | None = None, steps: int = 3) -> list[Claim]:
    """Trains a small GPT with servers; the table compares bytes with a ring's, and weights with one device's.

    Args:
        servers: Ranks that keep parameters; the others compute gradients. If not given, 2, or 1 of fewer than 4 ranks.
            Bytes and messages are counted for every number of servers.
        steps: Steps of each optimizer that is compared.
    """
    return claims(world, servers, steps)
