"""hierarchical: on any mesh it is one device's, and each rank sends what theory says on both kinds of links."""

from __future__ import annotations

import pytest
import torch

from minitrain.collectives import hierarchical
from minitrain.comm import Ledger, axes
from minitrain.costs import communication as costs
from tests.collectives import verbs


def on_mesh(world, nodes, local):
    """What is wrong, and the traffic that differs from theory's."""
    mesh, differ = axes(node=nodes, local=local), []
    groups = mesh.get_group("local"), mesh.get_group("node")
    for elements in (0, 1, world.size - 1, world.size + 1, 7 * world.size, 101):
        with Ledger() as ledger:
            hierarchical.all_reduce(torch.ones(elements), *groups)
        sent = [
            [entry.bytes for entry in ledger.entries if entry.operation == "send" and entry.group == group.group_desc]
            for group in groups
        ]
        predicted = costs.hierarchical_all_reduce(elements, 4, nodes, local, world.rank)
        if tuple((sum(sizes), len(sizes)) for sizes in sent) != predicted:
            differ.append((elements, sent, predicted))
    return verbs.wrong(world, "hierarchical", *groups), differ


@pytest.mark.parametrize(("nodes", "local"), [(1, 2), (2, 1), (3, 1), (1, 3), (2, 2), (3, 2)])
def test_any_mesh(ranks, nodes, local):
    assert ranks(nodes * local).run(on_mesh, nodes, local) == [([], [])] * (nodes * local)
