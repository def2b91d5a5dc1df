"""Tables on servers learn what a dense `nn.Embedding` learns on one device, and answer whatever workers ask."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from minitrain.comm import Ledger
from minitrain.comm.control import gather_objects
from minitrain.lessons.recommender.embedding import demo
from minitrain.parameter_server.full.roles import split_roles
from minitrain.ranks.ranks import RanksError
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import SGD, Adagrad, RowWiseAdagrad
from minitrain.recommender.tables import Table

DIMENSIONS = {"users": 4, "words": 3}
RULES = {"SGD": SGD(0.5), "Adagrad": Adagrad(0.5), "RowWiseAdagrad": RowWiseAdagrad(0.5)}
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


class Shard(NamedTuple):
    """What servers keep of one table: ids, ascending, with their rows and states."""

    ids: Tensor
    rows: Tensor
    states: dict[str, Tensor]


def gather(tables):
    """All servers' rows of each table, on every rank."""
    everyone = [each for each in gather_objects({n: (*t.contents(), t.states()) for n, t in tables.items()}) if each]
    found = {}
    for name in everyone[0]:
        ids, rows, states = zip(*(each[name] for each in everyone), strict=True)
        ids, order = torch.cat(ids).sort()
        by_state = {state: torch.cat([each[state] for each in states])[order] for state in states[0]}
        found[name] = Shard(ids, torch.cat(rows)[order], by_state)
    return found


def train(world, servers, rule, steps, before=lambda: None):
    roles = split_roles(servers)
    if roles.serves:
        server = EmbeddingServer(shards(rule), roles)
        before()
        server.serve(steps)
        return gather(server.tables)
    worker = EmbeddingWorker(roles, DIMENSIONS)
    for step in range(steps):
        loss(worker.lookup(batch(step, roles.workers.index(world.rank)))).backward()
        worker.push()
    return gather({})


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


@pytest.mark.parametrize(("size", "servers"), [(2, 1), (3, 1), (4, 2), (4, 1)])
@pytest.mark.parametrize("rule", ["SGD", "Adagrad"])
def test_equal_to_a_dense_embedding_bit_by_bit(ranks, size, servers, rule):
    found = ranks(size).run(train, servers, RULES[rule], 4)[0]
    made = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad}[rule]
    keys, before, after = on_one_device(lambda weights: made(weights, lr=0.5), size - servers, 4)
    for name, shard in found.items():
        place = torch.searchsorted(keys[name], shard.ids)
        assert len(shard.ids) > 5, "most ids have come"
        assert torch.equal(shard.rows, after[name][place])
        assert (shard.rows != before[name][place]).all(), "and all of these have learned"
        unused = torch.ones(len(keys[name]), dtype=torch.bool).index_fill_(0, place, False)
        assert torch.equal(after[name][unused], before[name][unused])


def test_the_number_of_servers_makes_no_difference(ranks):
    pool = ranks(4)
    two = pool.run(train_on, 3, 1, RULES["RowWiseAdagrad"])[0]
    four = pool.run(train_on, 4, 2, RULES["RowWiseAdagrad"])[0]
    for name in DIMENSIONS:
        assert torch.equal(two[name].ids, four[name].ids) and torch.equal(two[name].rows, four[name].rows)
        assert torch.equal(two[name].states["sum"], four[name].states["sum"])


def train_on(world, size, servers, rule):
    """On the first `size` ranks; the others only gather."""
    group = torch.distributed.new_group(list(range(size)))
    if world.rank >= size:
        return gather({})
    roles = split_roles(servers, group)
    if roles.serves:
        server = EmbeddingServer(shards(rule), roles)
        server.serve(3)
        return gather(server.tables)
    worker = EmbeddingWorker(roles, DIMENSIONS)
    for step in range(3):
        loss(worker.lookup(batch(step, roles.workers.index(world.rank)))).backward()
        worker.push()
    return gather({})


def test_a_lookup_waits_for_a_server_that_is_not_ready(ranks):
    late = ranks(2).run(train, 1, RULES["SGD"], 1, sleep)[0]
    soon = ranks(2).run(train, 1, RULES["SGD"], 1)[0]
    assert all(torch.equal(late[name].rows, soon[name].rows) for name in late)


def sleep():
    time.sleep(0.3)


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


def test_only_distinct_ids_and_their_rows_travel(ranks):
    one, other = torch.tensor([[5, 5], [-6, 5]]), [2**63 - 1]
    (made, answered), (rows, asked), (single, asked_one) = ranks(3).run(ask, [one, other])
    assert (made, answered) == (3, 3 * 2 * 4)
    assert (asked, asked_one) == (2 * 8, 8)
    assert torch.equal(rows, start(one.flatten(), 7, 2, 0.01).view(2, 2, 2))
    assert torch.equal(single, start(torch.tensor(other), 7, 2, 0.01))
    assert not rows.requires_grad


def test_nothing_travels_for_empty_batches(ranks):
    empty = torch.empty(0, 3, dtype=torch.int64)
    (made, answered), (rows, asked), (listed, _) = ranks(3).run(ask, [empty, []])
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


def save_and_go_on(world, folder):
    """Two servers save; then three ranks serve what they load, to the one that is left."""
    roles = split_roles(2)
    if roles.serves:
        server = EmbeddingServer(shards(RULES["Adagrad"]), roles)
        server.serve(2)
        server.save(folder)
    else:
        worker = EmbeddingWorker(roles, DIMENSIONS)
        for step in range(2):
            loss(worker.lookup(batch(step, roles.workers.index(world.rank)))).backward()
            worker.push()
    whole = gather(server.tables if roles.serves else {})
    roles = split_roles(3)
    if roles.serves:
        tables = {name: Table.load(f"{folder}/{name}", world.rank, 3) for name in DIMENSIONS}
        EmbeddingServer(tables, roles).serve(1)
        return None
    with torch.no_grad():
        rows = EmbeddingWorker(roles, DIMENSIONS).lookup({name: shard.ids for name, shard in whole.items()})
    return {name: torch.equal(rows[name], whole[name].rows) for name in rows}


def test_three_servers_go_on_where_two_left_off(ranks, tmp_path):
    assert ranks(4).run(save_and_go_on, str(tmp_path))[3] == {"users": True, "words": True}


def run_demo(world, servers, **options):
    claims = demo(world, servers=servers, **options)
    draw = world.draw is not None and world.rank == 0 and world.draw()
    return [(claim.what, claim.holds) for claim in claims], bool(draw)


@pytest.mark.parametrize(("size", "servers"), [(2, 1), (4, 2)])
def test_demo(ranks, size, servers):
    for claims, _ in ranks(size).run(run_demo, servers, ids=300, batch=17):
        assert all(holds for _, holds in claims), claims


def test_demo_with_no_worker(ranks):
    with pytest.raises(RanksError, match="servers=2 must leave"):
        ranks(2).run(run_demo, 2)
