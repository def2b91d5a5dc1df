"""Experts on several ranks: every layout equals one device, mistakes are seen, and every rank hears of an error."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.collectives import all_to_all
from minitrain.collectives.full import ring
from minitrain.comm import Ledger
from minitrain.lessons.mixture_of_experts.layer import make_layer
from minitrain.lessons.mixture_of_experts.layouts import ROUTERS, distance
from minitrain.mixture_of_experts import ExpertParallel, Switch
from minitrain.mixture_of_experts.full.expert_parallel import ExpertParallelLayer, experts_of, split_data_parallel
from minitrain.mixture_of_experts.full.layer import MoELayer, auxiliary_loss, layers
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

CARRIERS = {"native": all_to_all.native, "pairwise": all_to_all.pairwise}


def test_experts_are_shared_out():
    assert [list(experts_of(rank, 5, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(ValueError, match="experts=2 are too few for 3 expert-parallel ranks; use 3 at least"):
        experts_of(0, 2, 3)


def one_layer(world, router, ep, carrier, way, experts):
    """Ranks have 2, 3, 0 and 1 sequences: one of them has an empty batch."""
    layer = make_layer(world, ROUTERS[router](4, experts), way)
    model = ExpertParallel(copy.deepcopy(layer), split_data_parallel(ep), carrier=CARRIERS[carrier])
    assert distance(world, layer, model) <= 1e-12
    own = experts_of(world.rank % ep, experts, ep)
    assert {name.split(".")[1] for name in model.own_experts} == {str(number) for number in own}
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.own_experts.values()}
    assert sum(storages.values()) == sum(p.nbytes for p in model.own_experts.values())  # others' experts are gone


@pytest.mark.parametrize(
    "size, ep, carrier, way, router",
    [
        *((3, 3, "pairwise", "loop", router) for router in ROUTERS),
        (2, 1, "native", "grouped", "switch"),
        (4, 2, "native", "padded", "switch"),
    ],
)
def test_any_layout_and_router(ranks, size, ep, carrier, way, router):
    ranks(size).run(one_layer, router, ep, carrier, way, 5)


def a_gpt(world, ep):
    """A GPT with two mixtures, tied and frozen parameters, against one device; tests/composition trains others."""

    def build(seed):
        model = GPT(GPTConfig(vocabulary=17, positions=6, layers=4, hidden=4, heads=2), seed=seed).double()
        replace_mlps(model, lambda layer: Switch(4, 5, capacity_factor=1.0, layer=layer), seed=seed)
        model.blocks[0].mlp.requires_grad_(False)
        model.blocks[1].mlp.experts["1"].up.requires_grad_(False)
        return model

    reference, model = build(0), build(world.rank)
    model = ExpertParallel(model, split_data_parallel(ep), bucket_megabytes=0.001, collectives=ring)
    inputs, targets = torch.randint(17, (2, 2 * world.size, 6), generator=torch.Generator().manual_seed(0))
    part = slice(2 * world.rank, 2 * world.rank + 2)
    layers(reference)[0].router.set_position(0, 0)
    (reference(inputs, targets)[1] + auxiliary_loss(reference)).backward()
    layers(model)[0].router.set_position(0, 0, first_token=2 * world.rank * 6)
    (model(inputs[part], targets[part])[1] + auxiliary_loss(model)).backward()
    model.synchronize()
    expected = dict(reference.named_parameters())
    for name, parameter in model.module.named_parameters():
        assert (parameter.grad is None) == (expected[name].grad is None), name
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=0)
    return sorted(name for name in model.module.state_dict() if ".experts." in name), list(reference.state_dict())


@pytest.mark.parametrize("size, ep", ((3, 3), (4, 2)))
def test_a_gpt(ranks, size, ep):
    results = ranks(size).run(a_gpt, ep)
    names = [name for theirs, _ in results[:ep] for name in theirs]
    assert sorted(names) == sorted(name for name in results[0][1] if ".experts." in name)  # one group has each once


def accumulated(world):
    """Two micro-batches, the first under no_sync(), are one batch."""
    layer, groups = make_layer(world, Switch(4, 4), "grouped"), split_data_parallel(world.size)
    x = torch.randn(2 * world.size, 2, 10, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mine = x[2 * world.rank : 2 * world.rank + 2]
    model = ExpertParallel(copy.deepcopy(layer), groups)
    with Ledger() as ledger, model.no_sync():
        (model(mine[0]).sin().mean() / 2).backward()
    (model(mine[1]).sin().mean() / 2).backward()
    model.synchronize()
    layer(x).sin().mean().backward()
    expected = dict(layer.named_parameters())
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-10, atol=1e-13)
    return ledger.calls("all_reduce")


def test_accumulation(ranks):
    assert ranks(2).run(accumulated) == [0, 0]


# Break it: who divides by the number of replicas, or adds over ranks that hold other experts, is seen.


def wrong(world, mistake):
    layer = make_layer(world, Switch(4, 4))
    model = ExpertParallel(copy.deepcopy(layer), split_data_parallel(2))
    if mistake == "divided by the replicas":
        model.divisor = world.size // 2
    elif mistake == "added over all ranks":
        model.replicas = model.comm
    distance(world, layer, model)
    torch.testing.assert_close(model.module.router.gate.weight.grad, layer.router.gate.weight.grad, rtol=0, atol=1e-12)
    name = sorted(model.own_experts)[0]
    return (model.own_experts[name].grad.norm() / dict(layer.named_parameters())[name].grad.norm()).item()


@pytest.mark.parametrize("mistake", ("none", "divided by the replicas", "added over all ranks"))
def test_wrong_ranks_are_seen(ranks, mistake):
    for ratio in ranks(4).run(wrong, mistake):
        if mistake == "none":
            assert abs(ratio - 1) <= 1e-12
        elif mistake == "divided by the replicas":
            assert abs(ratio - 2) <= 1e-12
        else:
            assert abs(ratio - 1) > 0.01


# Bad input, and errors that only one rank sees.


def not_a_number(world, ep, check):
    layer = ExpertParallelLayer(make_layer(world, Switch(4, 4)), split_data_parallel(ep), check=check)
    x = torch.ones(2, 10, 4, dtype=torch.float64)
    layer(x)
    if world.rank == 1:
        x[0, 3] = torch.nan
    try:
        with Ledger() as ledger:
            layer(x)
    except ValueError as error:
        return str(error), ledger.payload("all_to_all")
    return "", 0


def test_numbers_that_are_none_are_an_error_on_every_rank(ranks):
    complaint = "router scores of 1 of 20 tokens are infinite or not a number"
    for ep in (3, 1):
        for message, sent in ranks(3).run(not_a_number, ep, True):
            assert message.startswith(f"rank 1: {complaint}") and sent == 0
    for rank, (message, sent) in enumerate(ranks(3).run(not_a_number, 3, False)):  # told by the counts
        expected = complaint if rank == 1 else "the router of expert-parallel rank 1 could not choose experts"
        assert message.startswith(expected) and 0 < sent <= 4 * 3 * 8


def bad(world):
    with pytest.raises(ValueError, match=r"ep=2 does not divide the 3 data-parallel ranks; use one of \[1, 3\]"):
        split_data_parallel(2)
    # A capacity of 0 is an error also where a rank has no tokens, and would not have noticed.
    layer = MoELayer(Switch(4, 4, capacity_factor=0.1), [nn.Linear(4, 4) for _ in range(4)])
    layer = ExpertParallelLayer(layer, split_data_parallel(3))
    with pytest.raises(ValueError, match=r"rank 0: capacity_factor=0.1 "):
        layer(torch.ones(2 * (world.rank == 0), 10, 4))


def test_bad_input_is_an_error_on_every_rank(ranks):
    ranks(3).run(bad)
