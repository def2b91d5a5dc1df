"""Hybrid sharding trains as one device does, with equal replicas, and refuses ranks that are no grid."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger, axes
from minitrain.comm.comm import Comm
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.lessons.zero import hybrid as lesson
from minitrain.zero import HybridZero3, Zero3, hybrid
from tests.zero import small
from tests.zero.models import ddp, gpt, part, train

GRIDS = ((1, 1), (1, 2), (2, 1), (3, 1), (2, 2), (1, 4))


def grid(nodes, local):
    mesh = axes(node=nodes, local=local)
    return mesh.get_group("local"), mesh.get_group("node")


def same(model, reference, tolerance=1e-11):
    """What each node holds are the parameters of a module on one device."""
    full = model.full_state_dict()
    for name, expected in reference.state_dict().items():
        torch.testing.assert_close(full[name], expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: n + m)


def like_ddp(world, nodes, local, clip, micro_batches, collectives=native):
    module, reference = gpt(seed=world.rank), gpt(seed=0)
    node, replicas = (Comm(group, collectives) for group in grid(nodes, local))
    model = HybridZero3(module, torch.optim.AdamW, node, replicas=replicas, lr=0.01)
    norms = train(model, world.rank, clip=clip, micro_batches=micro_batches)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    assert norms == pytest.approx(ddp(reference, optimizer, world.rank, clip=clip, micro_batches=micro_batches))
    same(model, reference)


@pytest.mark.parametrize("nodes, local", GRIDS)
def test_trains_like_ddp(ranks, nodes, local):
    ranks(nodes * local).run(like_ddp, nodes, local, None, 1)


def through_ring(world):
    like_ddp(world, 2, 2, 0.05, 3, ring)


def test_with_micro_batches_and_clipping_through_the_ring(ranks):
    ranks(4).run(through_ring)


def like_fsdp(world):
    """FSDP2 on a 2-D mesh is the same technique: its weights after three steps."""
    mesh = axes(node=2, local=2)
    module, other = gpt(seed=0), gpt(seed=0)
    node, replicas = mesh.get_group("local"), mesh.get_group("node")
    model = HybridZero3(module, torch.optim.SGD, node, replicas=replicas, lr=0.1)
    train(model, world.rank)
    for block in other.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(other, mesh=mesh)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for step in range(3):
        other(*part(world.rank, step))[1].backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = {name: value.full_tensor() for name, value in other.state_dict().items()}
    for name, value in model.full_state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-11, atol=1e-11)


def test_weights_are_those_of_fsdp2_on_a_mesh(ranks):
    ranks(4).run(like_fsdp)


def resumes(world):
    """States of a hybrid run go to stage 3 over all ranks, and back; a rank's own are refused by the other number."""
    node, replicas = grid(2, 2)
    model = HybridZero3(gpt(seed=world.rank), torch.optim.AdamW, node, replicas=replicas, lr=0.01)
    train(model, world.rank)
    others = [
        Zero3(gpt(seed=7), torch.optim.AdamW, lr=0.01),
        HybridZero3(gpt(seed=7), torch.optim.AdamW, node, replicas=replicas, lr=0.01),
    ]
    for other in others:
        other.load_full_state_dict(model.full_state_dict())
        other.load_optimizer_state_dict(model.optimizer_state_dict(whole=True))
    for each in (model, *others):
        train(each, world.rank, steps=2)
    for other in others:
        for name, expected in model.full_state_dict().items():
            torch.testing.assert_close(other.full_state_dict()[name], expected, rtol=1e-11, atol=1e-11)


def test_states_go_to_stage_3_and_back(ranks):
    ranks(4).run(resumes)


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


def test_dtype_of_the_sum_and_frozen_parameters(ranks):
    ranks(2).run(reduced_in)


# ---- what is refused ----


def refused(world):
    """The message on this rank of each misuse; nothing but control messages is sent."""
    node, replicas = grid(2, 2)
    neighbours = [new_group([0, 3]), new_group([1, 2])][world.rank in (1, 2)]
    found = []
    tries = (
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=node, lr=0.1),
        lambda: HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=neighbours, lr=0.1),
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


def twice(world):
    node, replicas = grid(2, 1)
    model = HybridZero3(gpt(seed=0), torch.optim.SGD, node, replicas=replicas, lr=0.1)
    model(*part(world.rank))[1].backward()
    model.synchronize()
    with pytest.raises(RuntimeError, match="zero_grad"):
        model.synchronize()
    model.step()
    model.zero_grad()
    train(model, world.rank, steps=1)
    first, other = gather_objects({name: value.tolist() for name, value in model.full_state_dict().items()})
    assert first == other


def test_a_second_synchronize_is_refused(ranks):
    ranks(2).run(twice)


# ---- the small form ----


def small_like_one_device(world, nodes, local):
    node, replicas = grid(nodes, local)

    class OnThisGrid(hybrid.HybridZero3):
        def __init__(self, module, optimizer_class, **options):
            super().__init__(module, optimizer_class, node, replicas, **options)

    small.like_one_device(world, OnThisGrid, group=node)


@pytest.mark.parametrize("nodes, local", GRIDS[1:])
def test_small_form_is_one_device(ranks, nodes, local):
    ranks(nodes * local).run(small_like_one_device, nodes, local)


def same_bits(world, nodes, local):
    node, replicas = grid(nodes, local)

    def stage(*args, **options):
        return hybrid.HybridZero3(*args, group=node, replicas=replicas, **options)

    small.like_full_form(world, stage, HybridZero3, comm=node, replicas=replicas)


@pytest.mark.parametrize("nodes, local", GRIDS)
def test_small_form_has_the_bits_of_the_full_form(ranks, nodes, local):
    ranks(nodes * local).run(same_bits, nodes, local)


def test_the_demo_takes_other_numbers_of_nodes_and_refuses_those_that_do_not_divide(ranks):
    assert all(claim.holds for claim in ranks(4).run(lesson.demo, 2, 4)[0])
    with pytest.raises(Exception, match="nodes=3 does not divide the 4 ranks"):
        ranks(4).run(lesson.demo, 2, 3)
