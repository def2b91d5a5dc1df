"""Asynchronous tables at their edges: fetched before any push, and batches without ids."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm.groups import new_group
from minitrain.comm.messages import rank_and_size
from minitrain.recommender.asynchronous import AsynchronousTable, train

IDS, WIDTH, STEPS = 8, 3, 4


def batches(rank):
    """Rank 1 has nothing in its second step."""
    found = [torch.tensor([step, 3, 3, 7 - rank]) for step in range(STEPS)]
    return [ids[:0] if (rank, step) == (1, 1) else ids for step, ids in enumerate(found)]


def trained(world, staleness):
    rank, ranks = rank_and_size()
    rows, dense = torch.arange(float(IDS * WIDTH)).view(IDS, WIDTH), torch.ones(WIDTH, requires_grad=True)
    table = AsynchronousTable(rows.chunk(ranks)[rank].clone(), 0.5, staleness, new_group(range(ranks), backend="gloo"))
    train(table, batches(rank), lambda _, rows: (rows * dense).sum().backward(), torch.optim.SGD([dense], 0.125))
    return table.rows.tolist(), dense.tolist()


def on_one_device(staleness, ranks=2):
    versions, dense = [torch.arange(float(IDS * WIDTH)).view(IDS, WIDTH)], torch.ones(WIDTH)
    for step in range(STEPS):
        rows, of_dense = versions[max(0, step - staleness)].clone().requires_grad_(), dense.clone().requires_grad_()
        for rank in range(ranks):
            (rows[batches(rank)[step]] * of_dense).sum().backward()
        versions.append(versions[-1] - 0.5 * rows.grad / ranks)
        dense = dense - 0.125 * of_dense.grad / ranks
    return versions[-1].tolist(), dense.tolist()


@pytest.mark.parametrize("staleness", [0, 2, STEPS + 3])
def test_one_devices_numbers_with_empty_batches_and_more_staleness_than_steps(ranks, staleness):
    found = ranks(2).run(trained, staleness)
    rows, dense = on_one_device(staleness)
    assert found[0][0] + found[1][0] == rows and found[0][1] == found[1][1] == dense
