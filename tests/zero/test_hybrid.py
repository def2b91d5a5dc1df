"""Hybrid sharding: what crosses the nodes, and ranks that are no grid. That it trains is in test_sharded.py."""

from __future__ import annotations

import pytest
import torch

from minitrain.comm import Ledger, axes
from minitrain.comm.groups import new_group
from minitrain.zero import HybridZero3
from tests.zero.models import gpt, part


def grid(nodes, local):
    mesh = axes(node=nodes, local=local)
    return mesh.get_group("local"), mesh.get_group("node")


def reduced_in(world):
    """Gradients in float32 of a model in bfloat16 cross in float32, and a frozen block crosses not at all."""
    module = gpt(seed=0).float()
    module.blocks[0].requires_grad_(False)
    node, replicas = grid(2, 1)
    model = HybridZero3(
        module, torch.optim.AdamW, node, torch.bfloat16, replicas=replicas, reduce_dtype=torch.float32, lr=0.01
    )
    model(*part(world.rank))[1].backward()
    with Ledger() as ledger:
        model.synchronize()
    shards = sum(line.partition.shard_elements for line in model.lines if line.trainable)
    assert ledger.payload("all_reduce", replicas.group_desc) == 4 * shards
    with pytest.raises(RuntimeError, match="zero_grad"):
        model.synchronize()


def test_dtype_of_the_sum_frozen_parameters_and_a_second_synchronize(ranks):
    ranks(2).run(reduced_in)


def refused(world):
    """The message on this rank of each misuse; nothing but control messages is sent."""
    node, replicas = grid(2, 2)
    neighbors = [new_group([0, 3]), new_group([1, 2])][world.rank in (1, 2)]
    found = []
    tries = (
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=node, lr=0.1),
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=neighbors, lr=0.1),
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=replicas, lr=0.1 + (world.rank == 3)),
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=replicas, lr=0.1 + (world.rank >= 2)),
        lambda: HybridZero3(gpt(seed=0, layers=1 + world.rank // 2), torch.optim.SGD, node, replicas=replicas, lr=0.1),
    )
    with Ledger() as ledger:
        for attempt in tries:
            with pytest.raises(ValueError) as error:
                attempt()
            found.append(str(error.value))
    assert not ledger.entries
    return found


def test_no_grid_and_different_nodes_are_refused_on_every_rank(ranks):
    everyone = ranks(4).run(refused)
    for messages in everyone:
        itself, crossed, one_rank, one_node, layers = messages
        assert "replicas" in itself and "axes(node=N, local=L)" in itself
        assert "replicas" in crossed
        assert "optimizer_options" in one_rank and "optimizer_options" in one_node
        assert layers
