"""Tables on servers learn what a dense `nn.Embedding` learns on one device, and answer whatever workers ask."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import SGD, Adagrad
from minitrain.recommender.tables import Table

DIMENSIONS = {"users": 4, "words": 3}
RULES = {"SGD": SGD(0.5), "Adagrad": Adagrad(0.5)}
SCALE = 0.5


def batch(step, worker):
    """A worker's ids: words come in bags of three; worker 1 has an empty batch in step 1."""
    generator = torch.Generator().manual_seed(10 * step + worker)
    size = 0 if (step, worker) == (1, 1) else 6 + worker
    users = torch.randint(-3, 4, (size,), generator=generator) * 2**60
    return {"users": users, "words": torch.randint(0, 12, (size, 3), generator=generator)}


def loss(rows):
    """Not linear in rows, so that gradients depend on all of them."""
    users, words = rows["users"], rows["words"].sum(1)  # (batch, 4), (batch, 3)
    return (users[:, :3] * words).sum(1).sin().sum() + users[:, 3].square().sum()


def shards(rule):
    return {name: Table(width, rule, len(name), SCALE) for name, width in DIMENSIONS.items()}


def train(world, servers, rule, steps):
    """Ids and rows of each table on this server."""
    roles = split_roles(servers)
    if roles.serves:
        server = EmbeddingServer(shards(rule), roles)
        server.serve(steps)
        return {name: table.contents() for name, table in server.tables.items()}
    worker = EmbeddingWorker(roles, DIMENSIONS)
    for step in range(steps):
        loss(worker.lookup(batch(step, roles.workers.index(world.rank)))).backward()
        worker.push()
    return None


def on_one_device(optimizer, workers, steps):
    """Dense tables of all ids, whose gradients accumulate over the workers' batches."""
    keys = {"users": torch.arange(-3, 4) * 2**60, "words": torch.arange(12)}
    rows = {name: start(keys[name], len(name), DIMENSIONS[name], SCALE) for name in keys}
    tables = {name: nn.Embedding(len(each), DIMENSIONS[name], _weight=each.clone()) for name, each in rows.items()}
    made = optimizer([each.weight for each in tables.values()])
    for step in range(steps):
        made.zero_grad()
        for worker in range(workers):
            ids = batch(step, worker)
            loss({name: tables[name](torch.searchsorted(keys[name], ids[name])) for name in keys}).backward()
        for each in tables.values():
            each.weight.grad /= workers
        made.step()
    return keys, rows, {name: each.weight.detach() for name, each in tables.items()}


@pytest.mark.parametrize(("size", "servers", "rule"), [(3, 1, "Adagrad"), (4, 2, "SGD")])
def test_equal_to_a_dense_embedding_bit_by_bit(ranks, size, servers, rule):
    made = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[rule]
    keys, before, after = on_one_device(lambda weights: made(weights, lr=0.5), size - servers, 4)
    for tables in ranks(size).run(train, servers, RULES[rule], 4)[:servers]:
        for name, (ids, rows) in tables.items():
            place = torch.searchsorted(keys[name], ids)
            assert torch.equal(rows, after[name][place])
            assert (rows != before[name][place]).all(), "and all of these have learned"


def ask(world, ids):
    """One lookup of each worker without gradients; returns the rows and what was sent."""
    roles = split_roles(1)
    with Ledger() as ledger:
        if roles.serves:
            server = EmbeddingServer({"t": Table(2, SGD(), 7)}, roles)
            server.serve(1)
            return len(server.tables["t"]), ledger.sent
        with torch.no_grad():
            rows = EmbeddingWorker(roles, {"t": 2}).lookup({"t": ids[world.rank - 1]})["t"]
    return rows, ledger.sent


def test_distinct_ids_and_their_rows_travel_and_nothing_for_empty_batches(ranks):
    one, other = torch.tensor([[5, 5], [-6, 5]]), [2**63 - 1]
    (made, answered), (rows, asked), (single, asked_one) = ranks(3).run(ask, [one, other])
    assert (made, answered) == (3, 3 * 2 * 4)
    assert (asked, asked_one) == (2 * 8, 8)
    assert torch.equal(rows, start(one.flatten(), 7, 2, 0.01).view(2, 2, 2)) and not rows.requires_grad
    assert torch.equal(single, start(torch.tensor(other), 7, 2, 0.01))
    (made, answered), (rows, asked), (listed, _) = ranks(3).run(ask, [torch.empty(0, 3, dtype=torch.int64), []])
    assert (made, answered, asked) == (0, 0, 0)
    assert rows.shape == (0, 3, 2) and listed.shape == (0, 2)


def poison(world):
    """Worker 1's gradient of id 1 is NaN; id 2 is everybody's, id 3 is used by nobody's loss."""
    roles = split_roles(1)
    if roles.serves:
        server = EmbeddingServer({"t": Table(2, SGD(1.0))}, roles)
        server.serve(2)
        return server.tables["t"].lookup(torch.tensor([1, 2, 3])), server.tables["t"].refused
    worker = EmbeddingWorker(roles, {"t": 2})
    rows = worker.lookup({"t": [1, 2, 3]})["t"]
    factor = torch.tensor([[float("nan") if world.rank == 1 else 1.0], [2.0], [0.0]])
    (rows[:2] * factor[:2]).sum().backward()
    worker.push()
    worker.lookup({"t": [3]})
    worker.push()  # without a backward
    return None


def test_nan_gradients_are_refused_and_counted(ranks):
    rows, refused = ranks(3).run(poison)[0]
    before = start(torch.tensor([1, 2, 3]), 0, 2, 0.01)
    assert refused == 1
    assert torch.equal(rows, before - torch.tensor([[0.0], [2.0], [0.0]]))


def mixed(world):
    """Worker 1 learns in a step in which worker 2 only looks."""
    roles = split_roles(1)
    if roles.serves:
        server = EmbeddingServer({"t": Table(1, SGD(1.0))}, roles)
        server.serve(1)
        return server.tables["t"].lookup(torch.tensor([1]))
    worker = EmbeddingWorker(roles, {"t": 1})
    with torch.set_grad_enabled(world.rank == 1):
        rows = worker.lookup({"t": [1]})["t"]
    if world.rank == 1:
        rows.sum().backward()
        worker.push()
    with pytest.raises(RuntimeError, match=r"push\(\) needs a lookup\(\)"):
        worker.push()
    return rows


def test_who_only_looks_counts_as_zeros(ranks):
    after, _, before = ranks(3).run(mixed)
    assert torch.equal(after, before - 0.5)


def fails(world, action):
    """The error that `action` gives here; afterwards the same tables still answer."""
    roles = split_roles(1)
    server = EmbeddingServer({"t": Table(2, SGD())}, roles) if roles.serves else None
    worker = None if roles.serves else EmbeddingWorker(roles, {"t": 2})
    with Ledger() as ledger, pytest.raises(ValueError) as caught:
        if server:
            server.serve(1)
        else:
            action(worker, world.rank)
    assert ledger.sent == 0
    if server:
        server.serve(1)
    else:
        worker.lookup({"t": [1]})
        worker.push()
    return str(caught.value)


def wide(worker, rank):
    worker.lookup({"t": [2**63] if rank == 2 else [1]})


def floats(worker, rank):
    worker.lookup({"t": torch.ones(2) if rank == 1 else torch.ones(2).long()})


def unknown(worker, rank):
    worker.lookup({"s": [1]} if rank == 2 else {"t": [1]})


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (wide, r"rank 2: ids\['t'\]: id 9223372036854775808 has more than 64 bits"),
        (floats, r"rank 1: ids\['t'\]: ids are torch.float32"),
        (unknown, r"rank 2: ids=\['s'\] must name each of the tables \['t'\]"),
    ],
)
def test_ids_that_cannot_be_are_an_error_on_every_rank(ranks, action, message):
    errors = ranks(3).run(fails, action)
    assert len(set(errors)) == 1
    with pytest.raises(ValueError, match=message):
        raise ValueError(errors[0])


def twice(world):
    roles = split_roles(1)
    with pytest.raises(ValueError, match="rank 1: lookup.. came twice"):
        if roles.serves:
            EmbeddingServer({"t": Table(2, SGD())}, roles).serve(2)
        else:
            worker = EmbeddingWorker(roles, {"t": 2})
            worker.lookup({"t": []})
            if world.rank == 2:
                worker.push()
            worker.lookup({"t": []})
    return True


def test_a_forgotten_push_is_an_error_on_every_rank(ranks):
    assert all(ranks(3).run(twice))


def disagree(world, kind):
    roles = split_roles(2)
    tables = {"t": Table(3 if kind == "dimension" and world.rank == 1 else 2, SGD(), world.rank * (kind == "seed"))}
    dimensions = {"t": 5} if kind == "worker" and world.rank == 2 else {"t": 2}
    if kind == "none":
        tables, dimensions = {}, {}
    with pytest.raises(ValueError) as caught:
        if world.rank < (3 if kind == "role" else 2):
            EmbeddingServer(tables, roles)
        else:
            EmbeddingWorker(roles, dimensions)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dimension", "rank 1, a server, has"),
        ("seed", "rank 1, a server, has"),
        ("worker", "rank 2, a worker, has"),
        ("role", "rank 2 is a worker and made an EmbeddingServer"),
        ("none", "tables: there is none"),
    ],
)
def test_tables_that_differ_are_an_error_on_every_rank(ranks, kind, message):
    errors = ranks(4).run(disagree, kind)
    assert len(set(errors)) == 1 and message in errors[0]
