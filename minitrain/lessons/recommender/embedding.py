"""The lesson of `minitrain.recommender.embedding`: bytes by distinct ids, and tables like one device's.

Where all bits are equal. A worker computes with rows that have the same bits as those of one device's `nn.Embedding`,
by the same operations on tensors of the same shapes. Backward adds the gradients of an id's occurrences in their order,
on both sides. The server adds the workers' sums in the workers' order, as one device does that goes through the
workers' parts one after the other and lets `.grad` accumulate; a worker that does not have the id adds 0 there and
nothing here. Both divide by the number of workers. SGD and Adagrad then apply the same operations to each element by
itself, and a gradient of zero leaves weight and state as they are: w − lr · 0/(√s + eps) = w. So the rows that a batch
does not use are equal too, step after step.
"""

from __future__ import annotations

import torch
from torch import nn

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.lessons.pictures import recommender as pictures
from minitrain.lessons.recommender import click
from minitrain.lessons.recommender.click import Contents, Setting, different
from minitrain.lessons.rows import Claim, Rows
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender.click import Clicks
from minitrain.recommender.row_rules import SGD, Adagrad

STEPS, RATE = 4, 0.1
SENT = "bytes sent by this rank in a step, for u distinct ids"
DENSE = "elements that differ from a dense nn.Embedding's on one device, SGD and Adagrad"
FORMULA = "worker: u(8 + dw); server: u · dw"


def demo(world: World) -> list[Claim]:
    """Trains the click model's tables on servers; the table shows what is sent, and that one device learns the same."""
    rows, ids, batch = Rows(), 10_000, 256  # of each of three features, and of each worker
    if world.size == 1:
        rows.needs(2, SENT, FORMULA)
        rows.needs(2, DENSE, "0")
        return rows.claims()
    roles = split_roles(2 if world.size > 3 else 1)
    servers, workers = len(roles.servers), len(roles.workers)
    setting = Setting(Clicks(ids=ids), 6, batch)

    _, ledger = click.served(world, roles, setting, SGD(RATE), 1)
    expected = click.step_costs(setting, 0, servers, workers)[world.rank]
    leaving = expected.to_worker if roles.serves else expected.to_server
    source = "derived; Li et al. 2014, §2.2 and §4.2, for keys that are sent once"
    rows.add(SENT, FORMULA, leaving.bytes, ledger.sent, source=source)

    for rule, optimizer in ((SGD(RATE), torch.optim.SGD), (Adagrad(RATE), torch.optim.Adagrad)):
        tables, _ = click.served(world, roles, setting, rule, STEPS)
        trained, dense = click.gathered(tables), on_one_device(world, setting, optimizer, workers)
        learned = {name: (keys, row[:, : setting.dimension]) for name, (keys, row) in trained.items()}
        unlike = sum(different(learned[name], dense[name]) for name in dense)
        rows.add(DENSE, "0", 0, unlike, "1", case=type(rule).__name__, how="compared")

    points = []
    for size in (batch // 8, batch // 2, 2 * batch, 8 * batch):
        _, ledger = click.served(world, roles, setting._replace(batch=size), SGD(RATE), 1)
        points.append((size, gather_objects(ledger.sent + ledger.received)[roles.workers[0]]))
    world.figure(lambda: pictures.bytes_of_a_step(points, ids, setting.dimension, 1.1, len(setting.data.names)))
    return rows.claims()


def on_one_device(world: World, setting: Setting, optimizer: type, workers: int) -> dict[str, Contents]:
    """The same training with a dense `nn.Embedding` for each table."""
    parts = [[setting.part(world, step, worker, workers) for worker in range(workers)] for step in range(STEPS)]
    keys, dense = {}, {}
    for name, table in setting.tables(SGD(RATE), world.device).items():  # for the first values of rows
        keys[name] = torch.cat([part.ids[name] for step in parts for part in step]).unique()
        dense[name] = nn.Embedding.from_pretrained(table.lookup(keys[name]), freeze=False)
    model, made = setting.model(world), optimizer([each.weight for each in dense.values()], lr=RATE, foreach=False)
    for step in parts:
        made.zero_grad()
        for part in step:
            rows = {name: dense[name](torch.searchsorted(keys[name], part.ids[name])) for name in keys}
            model.loss(rows, part).backward()
        for each in dense.values():
            each.weight.grad /= workers
        made.step()
    return {name: (keys[name].cpu(), dense[name].weight.detach().cpu()) for name in keys}
