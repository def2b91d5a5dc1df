"""The lesson of `minitrain.parameter_server.synchronous`: bytes, next to a ring's, time, and one device's bits.

Bits are equal for this reason: a worker computes a gradient by the operations of one device. One device adds the next
part's gradient to `.grad`, the server adds the next push to the sum: the same additions in the same order, and then
the same division.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from minitrain.comm import Ledger, VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.costs import parameter_server as costs
from minitrain.costs.data_parallel import Sizes
from minitrain.lessons.parameter_server import training
from minitrain.lessons.parameter_server.training import ADAMW, small_gpt, train
from minitrain.lessons.pictures import parameter_server as pictures
from minitrain.lessons.rows import Claim, Rows
from minitrain.models.gpt import GPT
from minitrain.parameter_server import synchronous
from minitrain.parameter_server.full.placement import place
from minitrain.parameter_server.full.roles import split_roles
from minitrain.watch.board import Board

ALPHA, BETA = 2.0**-17, 2.0**-35  # virtual seconds per message and per byte
LINK = "small form: bytes through this rank's link in a step, in and out", "2nS at the server; 2S at a worker"
TIME = "small form: time of a step", "(α + βS) + F + n(α + βS)"
SAME = "small form: weights that differ from one device's after 3 steps of AdamW"
BUSIEST = "bytes through the busiest server's link in a step, any k", "max over s of n(2Sₛ + wPₛ) ≈ 2nS/k"
RING = "bytes through the busiest link if the workers form a ring instead", "max over r ≈ 4(n−1)/n · (S + wP)"
PATARASUK = "Patarasuk & Yuan 2009"


def demo(world: World) -> list[Claim]:
    """Trains a small GPT with servers; the table compares bytes with a ring's, and weights with one device's."""
    rows, n, steps = Rows("derived"), world.size - 1, 3
    if n < 1:
        for row in (LINK, TIME, (SAME, "0"), BUSIEST):
            rows.needs(2, *row)
        rows.needs(3, *RING, PATARASUK)
        return rows.claims()
    roles, module = split_roles(1), small_gpt(world, world.rank)
    part: Any = synchronous.Server(module, ADAMW) if roles.serves else synchronous.Worker(module)
    with Ledger() as ledger, VirtualClock(ALPHA, BETA) as clock:
        train(world, module, part, roles, steps, clock)
    parameters = list(module.parameters())
    size = sum(parameter.nbytes for parameter in parameters)
    rows.add(*LINK, 2 * size * (n if roles.serves else 1), (ledger.sent + ledger.received) / steps)
    predicted = costs.step_time(size, size, n, ALPHA, BETA, training.COMPUTE)
    rows.time(*TIME, predicted, max(gather_objects(clock.now)) / steps)

    part.answer() if roles.serves else part.pull()  # so that workers have what the server has
    rows.equal(SAME, [p.detach() for p in parameters], [p.detach() for p in one_device(world, steps, n).parameters()])
    links(rows, world)
    return rows.claims()


def one_device(world: World, steps: int, workers: int) -> GPT:
    """The small GPT after some steps on one device, which adds up the workers' gradients in their order."""
    module = small_gpt(world, 0)
    optimizer = ADAMW(module.parameters())
    for step in range(steps):
        for worker in range(workers):
            training.backward(world, module, worker, step)
        for parameter in module.parameters():
            parameter.grad.div_(workers)  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
    return module


def links(rows: Rows, world: World) -> None:
    """Claim the bytes through the busiest link, of k servers and of a ring, for all ways to split the ranks."""
    points: list[tuple[int, int, float, float]] = []
    for servers in range(1, max(world.size - 1, 2)):
        roles, n, case = split_roles(servers), world.size - servers, f"k = {servers}"
        ledger, module = training.counted(world, roles)
        sizes = [Sizes(p.numel(), p.element_size(), str(p.dtype)) for p in module.parameters()]
        owners = place([elements * item for elements, item, _ in sizes], servers)
        most = max(gather_objects(ledger.sent + ledger.received if roles.serves else 0))
        rows.add(*BUSIEST, costs.busiest_server(sizes, owners, servers, n), most, case=case)
        if n < 2:
            rows.needs(3, *RING, PATARASUK)
            return
        around = training.counted_in_ring(world, roles)
        rows.add(*RING, costs.busiest_in_ring(sizes, n), around, "B", PATARASUK, case=case)
        whole = sum(parameter.nbytes for parameter in module.parameters())
        points.append((n, servers, most / whole, around / whole))
    world.figure(lambda: pictures.links(points))


def lost_push(world: World, limit: float = 2.0) -> str:
    """Break it: the last worker leaves out its second push. What this rank then says, within `limit` seconds.

    The server waits for the push, and all workers for the server's next answer, until the time limit ends each wait.
    The checks of ranks, which would notice the circle, are off. It has a group of its own, since a receive that ran out
    of time closes the pair of ranks for good.
    """
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit))
    assert isinstance(group, dist.ProcessGroup)
    roles, module = split_roles(1, group), small_gpt(world, world.rank)
    part = training.full_form(module, roles)
    board, Board.current = Board.current, None
    try:
        train(world, module, part, roles, 1)
        if world.rank == roles.workers[-1]:
            part.pull()
            part.step += 1  # computes, but does not push
        train(world, module, part, roles, 2)
        seen = "went on"
    except RuntimeError as error:
        seen = str(error).partition(" (")[0]
    finally:
        dist.barrier()  # ranks notice it at different moments; now all of them have
        Board.current = board
    return seen
