"""Tables on servers learn what a dense `nn.Embedding` learns on one device, and answer whatever workers ask."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger
from minitrain.parameter_server.full.roles import split_roles
from minitrain.recommender.embedding import EmbeddingServer, EmbeddingWorker
from minitrain.recommender.hashing import start
from minitrain.recommender.row_rules import SGD
from minitrain.recommender.tables import Table


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


def test_nothing_travels_for_empty_batches(ranks):
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


def fails(world, case):
    """The error that a wrong question gives here; afterwards the same tables still answer."""
    roles = split_roles(1)
    server = EmbeddingServer({"t": Table(2, SGD())}, roles) if roles.serves else None
    worker = None if roles.serves else EmbeddingWorker(roles, {"t": 2})
    with Ledger() as ledger, pytest.raises(ValueError) as caught:
        if server:
            server.serve(1)
        else:
            worker.lookup(WRONG[case][0](world.rank))
    assert ledger.sent == 0
    if server:
        server.serve(1)
    else:
        worker.lookup({"t": [1]})
        worker.push()
    return str(caught.value)


# What worker `rank` asks for, and what all are told.
WRONG = {
    "wide": (lambda rank: {"t": [2**63] if rank == 2 else [1]}, "rank 2: ids['t']: id 9223372036854775808 has more"),
    "floats": (lambda rank: {"t": torch.ones(2) if rank == 1 else [1, 1]}, "rank 1: ids['t']: ids are torch.float32"),
    "unknown": (lambda rank: {"s": [1]} if rank == 2 else {"t": [1]}, "rank 2: ids=['s'] must name each of the tables"),
}


@pytest.mark.parametrize("case", WRONG)
def test_ids_that_cannot_be_are_an_error_on_every_rank(ranks, case):
    errors = ranks(3).run(fails, case)
    assert len(set(errors)) == 1 and WRONG[case][1] in errors[0]


def disagree(world, kind):
    roles = split_roles(2)
    tables = {"t": Table(3 if kind == "dimension" and world.rank == 1 else 2, SGD())}
    dimensions = {"t": 5} if kind == "worker" and world.rank == 2 else {"t": 2}
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
        ("worker", "rank 2, a worker, has"),
        ("role", "rank 2 is a worker and made an EmbeddingServer"),
    ],
)
def test_tables_that_differ_are_an_error_on_every_rank(ranks, kind, message):
    errors = ranks(4).run(disagree, kind)
    assert len(set(errors)) == 1 and message in errors[0]
