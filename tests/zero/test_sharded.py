"""Every form trains as torch's DDP with the whole optimizer, for every kind of model; and refuses what it cannot."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from jaxtyping import TypeCheckError
from torch import nn

from minitrain.collectives.full import native, ring
from minitrain.costs import zero as costs
from minitrain.lessons.zero.common import held
from minitrain.zero import HybridZero3, Zero1, Zero2, Zero3
from minitrain.zero.full.stage2 import Undrained
from tests.zero.models import Branches, Few, Mixed, ddp, gpt, lines, part, same, same_weights, train, twins, wrap

stages = pytest.mark.parametrize("stage", (Zero1, Zero2))
all_stages = pytest.mark.parametrize("stage", (Zero1, Zero2, Zero3))
forms = pytest.mark.parametrize("form", (Zero1, Zero2, Undrained, Zero3, HybridZero3))

# Ranks, what differs from the usual GPT, collectives, clipping, and micro-batches.
RUNS = {
    "plain": (2, {"kv_heads": 1}, native, None, 1),
    "ring": (3, {"tied": False}, ring, 0.05, 3),
    "four ranks": (4, {"layers": 3}, native, 0.05, 2),
}


def like_ddp(world, form, run):
    """Rank 0's weights are what all start from; after three steps they are DDP's, and so is the norm of gradients."""
    _, choices, collectives, clip, micro_batches = RUNS[run]
    reference = gpt(seed=0, **choices)
    model = wrap(world, form, gpt(seed=world.rank, **choices), collectives=collectives)
    norms = train(model, world.rank, clip=clip, micro_batches=micro_batches)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    expected = ddp(reference, optimizer, world.rank, clip=clip, micro_batches=micro_batches)
    assert norms == pytest.approx(expected, rel=1e-12)
    same(model, reference)


@forms
@pytest.mark.parametrize("run", RUNS)
def test_trains_like_ddp(ranks, form, run):
    ranks(RUNS[run][0]).run(like_ddp, form, run)


def frozen(world, stage):
    """In nested units, one named twice, and the module itself, which is the root anyway."""
    module, reference = gpt(seed=world.rank), gpt(seed=0)
    for each in (module, reference):
        each.embedding.requires_grad_(False)  # the tied head too
        each.blocks[0].mlp.up.bias.requires_grad_(False)
    block = module.blocks[0]
    model = stage(module, torch.optim.AdamW, units=[block.mlp, block, block.mlp, module], lr=0.01)
    assert [unit.name for unit in model.units] == ["root", "blocks.0.mlp", "blocks.0"]
    train(model, world.rank)
    ddp(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), world.rank)
    same(model, reference)
    assert module.embedding.tokens.weight.grad is None
    assert [line.master is None for line in model.lines if not line.trainable] == [True, True]
    assert sum(line.partition.elements for line in model.lines) == reference.parameter_count()


def unused(world, stage):
    """What no rank uses counts as a gradient of zeros: weight decay and momentum go on, unlike in torch."""
    torch.manual_seed(0)
    module, reference = twins(lambda: Branches().double())
    model = stage(module, torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for used in (["first", "second"], ["first"], []):
        inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(len(used)), dtype=torch.float64)
        # Rank 0 uses less than the others.
        model(inputs[world.rank], used if world.rank else used[:1]).backward()
        model.synchronize()
        losses = [reference(inputs[rank], used if rank else used[:1]) for rank in range(world.size)]
        (sum(losses) / world.size).backward()
        for parameter in reference.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for each in (model, optimizer):
            each.step()
            each.zero_grad()
        same_weights(module, reference)


@stages
def test_unused_parameters_count_as_zeros(ranks, stage):
    ranks(3).run(unused, stage)


def whole_batch(world, stage, make):
    """One step of SGD against one device with every rank's part; `make` gives other values on each rank."""
    torch.manual_seed(world.rank)
    module = make()
    everyone = [copy.deepcopy(module) if rank == world.rank else None for rank in range(world.size)]
    dist.broadcast_object_list(everyone, 0)
    reference = everyone[0]
    model = stage(module, torch.optim.SGD, lr=0.1)
    for (name, buffer), expected in zip(module.named_buffers(), reference.buffers(), strict=True):
        assert torch.equal(buffer, expected), name
    inputs = torch.randn(world.size, 2, 3, generator=torch.Generator().manual_seed(7))
    model(inputs[world.rank]).square().mean().backward()
    model.synchronize()
    model.step()
    model.zero_grad()
    (sum(reference(x).square().mean() for x in inputs) / world.size).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    same(model, reference, 1e-6)
    return [line.partition.elements for line in model.lines]


def normalized():
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


@all_stages
def test_several_dtypes_gaps_and_no_elements(ranks, stage):
    for elements in ranks(3).run(whole_batch, stage, Mixed):
        assert sorted(elements) == [9, 20, 18 + 9]  # complex, float, double with gaps


@all_stages
def test_buffers_start_equal_and_ranks_may_be_more_than_elements(ranks, stage):
    ranks(2).run(whole_batch, stage, normalized)
    for elements in ranks(4).run(whole_batch, stage, Few):
        assert elements == [2]


def bytes_held(world, stage, dtype):
    """When the second step's gradients have arrived: what is counted, and what theory says."""
    model = stage(gpt(seed=0).float(), torch.optim.AdamW, None, dtype, lr=0.01)
    train(model, world.rank, steps=1)
    model(*part(world.rank))[1].backward()
    model.synchronize()
    number = (Zero1, Zero2, Zero3).index(stage) + 1
    found = held(model)
    # A copy in float32 is kept of parameters in 16 bits.
    return found, costs.held(number, lines(model), world.size, 12 if dtype else 8) | {"buffers": found["buffers"]}


@all_stages
@pytest.mark.parametrize("dtype", (None, torch.bfloat16), ids=str)
def test_each_stage_holds_what_theory_says(ranks, stage, dtype):
    for found, expected in ranks(3).run(bytes_held, stage, dtype):
        assert found == expected


class Sign(torch.optim.SGD):
    """An optimizer that torch does not have, and that treats each element by itself."""

    def size(self, gradient):
        return gradient.abs()

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad / self.size(parameter.grad)


class Normalized(Sign):
    """One that does not."""

    def size(self, gradient):
        return gradient.norm()


def optimizers_that_mix_elements(world):
    for mixing, reason in (
        (torch.optim.Adafactor, "means over the rows and columns of a matrix; use minitrain.optimizers.Adafactor with"),
        (torch.optim.Muon, "whole matrix orthogonal; use minitrain.optimizers.Muon with any stage"),
        (torch.optim.LBFGS, "inner products"),
        (torch.optim.SparseAdam, "sparse gradients"),
        (Normalized, "mixes the elements of a tensor; .* or data parallelism without ZeRO"),
    ):
        with pytest.raises(
            ValueError, match=f"optimizer_class={mixing.__name__} cannot step on flat shards: .*{reason}"
        ):
            Zero1(nn.Linear(2, 2), mixing, **({"lr": 0.1} if mixing is Normalized else {}))
    with pytest.raises(ValueError, match="optimizer_class=Sign failed on a flat tensor of 128 elements"):
        Zero1(nn.Linear(2, 2), Sign, lr=0.1, unknown=1)
    for fine in (Sign, torch.optim.ASGD, torch.optim.Rprop):
        Zero1(nn.Linear(2, 2), fine, lr=0.1)


def misuses(world):
    def refused(match, module=None, **choices):
        with pytest.raises(ValueError, match=match):
            Zero1(nn.Linear(2, 3) if module is None else module, torch.optim.SGD, **{"lr": 0.1, **choices})

    refused("weight differs between ranks", nn.Linear(2 + world.rank, 3))
    refused(r"optimizer_options differs between ranks: rank 0: .*0\.5.*; rank 1: ", lr=0.5 + world.rank)
    refused("embedding .* asks for sparse gradients", nn.Embedding(4, 2, sparse=True))
    refused("compute_dtype=torch.int32 is not floating", compute_dtype=torch.int32)
    refused("reduce_dtype=torch.int32 is not floating; use torch.bfloat16", reduce_dtype=torch.int32)
    refused(r"units\[0\], a Linear, is no part of `module`", units=[nn.Linear(2, 2)])
    layer = nn.Linear(2, 3)
    refused("parameter_groups: bias is in none of them", layer, parameter_groups=[{"params": [layer.weight]}])
    twice = [{"params": layer.parameters()}, {"params": layer.bias}]
    refused(r"parameter_groups\[1\]: bias is listed twice", layer, parameter_groups=twice)
    refused(r"\[0\] holds a Parameter that is no parameter", parameter_groups=[{"params": [layer.weight]}])
    alone = [dist.new_group([rank]) for rank in range(world.size)]
    with pytest.raises((ValueError, TypeCheckError), match="group"):
        Zero1(nn.Linear(2, 3), torch.optim.SGD, alone[1 - world.rank], lr=0.1)
    sparse = nn.Sequential(nn.Linear(2, 2))
    model = Zero2(sparse, torch.optim.SGD, lr=0.1)
    with pytest.raises(RuntimeError, match=r"there are no gradients: call synchronize\(\)"):
        model.step()
    with pytest.raises(ValueError, match="max_norm=0 must be positive"):
        model.clip_grad_norm(0)


def dropped(world, stage):
    """A model of which nobody knows is freed."""
    model = stage(gpt(seed=0), torch.optim.AdamW, lr=0.01)
    train(model, world.rank)
    weight = weakref.ref(model.module.blocks[0].mlp.up.weight)
    del model
    gc.collect()
    assert weight() is None


@all_stages
@pytest.mark.parametrize("case", (frozen, dropped))
def test_on_three_ranks(ranks, case, stage):
    ranks(3).run(case, stage)


@pytest.mark.parametrize("case", (optimizers_that_mix_elements, misuses))
def test_refusals_come_on_every_rank(ranks, case):
    ranks(2).run(case)
