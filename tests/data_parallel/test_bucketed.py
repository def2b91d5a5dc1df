"""Packing: every parameter once, from the last to the first, in buckets that costs predicts by another way."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from minitrain.comm import Ledger
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import BucketedDataParallel, DataParallel, bucketed
from minitrain.data_parallel.full.bucketed import Bucket, pack
from tests.data_parallel.models import SMALL, Branches, close, gpt, small_equals_full, small_equals_one_device, tokens

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def some_parameters(shapes):
    return {f"p{i}": nn.Parameter(torch.zeros(size, dtype=DTYPES[kind])) for i, (size, kind) in enumerate(shapes)}


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2)), max_size=12), st.integers(1, 300))
def test_packing_is_what_costs_predicts(shapes, limit):
    parameters = some_parameters(shapes)
    buckets = pack(parameters, limit / 2**20)
    sizes = [costs.Sizes(p.numel(), p.element_size(), p.dtype) for p in parameters.values()]
    predicted = costs.buckets(sizes, limit)
    assert [(b.flat.numel(), b.flat.element_size(), b.flat.dtype) for b in buckets] == predicted
    assert sum(bucket.flat.nbytes for bucket in buckets) == costs.payload(sizes)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2)), max_size=12), st.integers(1, 300))
def test_what_packing_promises(shapes, limit):
    parameters = some_parameters(shapes)
    buckets = pack(parameters, limit / 2**20)
    packed = [name for bucket in buckets for name in bucket.parameters]
    assert sorted(packed) == sorted(parameters)
    for dtype in DTYPES:
        mine = [bucket for bucket in buckets if bucket.flat.dtype == dtype]
        names = [name for bucket in mine for name in bucket.parameters]
        assert names == [name for name in reversed(parameters) if parameters[name].dtype == dtype]
        sizes = [[p.nbytes for p in bucket.parameters.values()] for bucket in mine]
        for size in sizes:
            assert sum(size[:-1]) < limit  # it was not full before its last parameter
        assert all(sum(size) >= limit for size in sizes[:-1])
        assert len(mine) <= costs.most_buckets(sum(map(sum, sizes)), limit)
    firsts = [list(parameters).index(next(iter(bucket.parameters))) for bucket in buckets]
    assert firsts == sorted(firsts, reverse=True)


def test_a_parameter_larger_than_a_bucket_is_not_cut():
    parameters = {"small": nn.Parameter(torch.zeros(3)), "large": nn.Parameter(torch.zeros(1000))}
    assert [list(bucket.parameters) for bucket in pack(parameters, 100 / 2**20)] == [["large"], ["small"]]


def test_a_bucket_keeps_gradients_apart():
    parameters = {
        "a": nn.Parameter(torch.zeros(2, 3).t()),
        "b": nn.Parameter(torch.zeros(())),
        "c": nn.Parameter(torch.zeros(4)),
    }
    bucket = Bucket(parameters)
    gradients = {"a": torch.arange(6.0).view(3, 2), "b": torch.tensor(7.0), "c": None}
    for name, gradient in gradients.items():
        bucket.put(name, gradient, 2.0)
    assert bucket.seal().tolist() == [0, 2, 4, 6, 8, 10, 14, 0, 0, 0, 0, 1, 1, 0]
    bucket.hand_back()
    assert torch.equal(parameters["a"].grad, 2 * gradients["a"])
    assert parameters["a"].grad.stride() == parameters["a"].stride()  # as autograd would lay it out
    assert parameters["b"].grad == 14
    assert parameters["c"].grad is None


def calls(world, kilobytes):
    model = BucketedDataParallel(gpt(seed=0), bucket_megabytes=kilobytes / 1024)
    sizes = [costs.Sizes(p.numel(), 8) for p in model.trainable.values()]
    model(*tokens(1, world.rank))[1].backward()
    with Ledger() as ledger:
        model.synchronize()
    return (
        ledger.calls("all_reduce"),
        len(costs.buckets(sizes, kilobytes * 1024)),
        ledger.payload("all_reduce"),
        costs.payload(sizes),
    )


@pytest.mark.parametrize("kilobytes", (0.001, 1, 4, 1000))
def test_one_all_reduce_for_each_bucket(ranks, kilobytes):
    for counted, predicted, payload, bytes_predicted in ranks(2).run(calls, kilobytes):
        assert counted == predicted
        assert payload == bytes_predicted


@settings(max_examples=200)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 300))
def test_small_form_packs_as_the_full_one_does(shapes, limit):
    module = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in shapes)
    full = [list(bucket.parameters.values()) for bucket in pack(dict(module.named_parameters()), limit / 2**20)]
    small = bucketed.pack(module, limit / 2**20)
    assert [[id(p) for p in bucket] for bucket in small] == [[id(p) for p in bucket] for bucket in full]


@pytest.mark.parametrize("bucket_megabytes", (SMALL, 25.0))
@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_form_equals_one_device(ranks, size, bucket_megabytes):
    ranks(size).run(small_equals_one_device, bucketed.BucketedDataParallel, bucket_megabytes)


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_form_equals_the_full_one(ranks, size):
    """To the last bit on two ranks. The full form's flags lie in the buckets, so more ranks add in another order."""
    ranks(size).run(small_equals_full, bucketed.BucketedDataParallel, BucketedDataParallel, size == 2, SMALL)


def memory(world):
    """Gradients after a step: the buckets, and nothing beside them."""
    model = bucketed.BucketedDataParallel(gpt(seed=0), None, SMALL)
    model(*tokens(1, world.rank))[1].backward()
    model.synchronize()
    storages = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in model.parameters()}
    return len(storages), len(model.buckets), sum(storages.values()), sum(p.nbytes for p in model.parameters())


def test_small_form_keeps_gradients_once(ranks):
    for storages, buckets, held, gradients in ranks(2).run(memory):
        assert storages == buckets > 3
        assert held == gradients


# Which branches each rank uses in each of four steps: one that nobody uses, then everybody, then rank 0 alone.
TURNS = ((["first"], ["first"]), (["first", "second"], ["second"]), (["second"], []), (["first", "second"], ["first"]))


def unused_by_turns(world, rung):
    torch.manual_seed(0)
    reference = Branches().double()
    model = rung(copy.deepcopy(reference), bucket_megabytes=SMALL)
    inputs = torch.randn(world.size, 3, dtype=torch.float64)
    for first, others in TURNS:
        model(inputs[world.rank], others if world.rank else first).backward()
        model.synchronize()
        for rank in range(world.size):
            (reference(inputs[rank], others if rank else first) / world.size).backward()
        close(model.module, reference)
        model.zero_grad()
        reference.zero_grad()


@pytest.mark.parametrize("rung", (BucketedDataParallel, DataParallel))
def test_a_parameter_that_was_unused_in_the_step_before(ranks, rung):
    ranks(3).run(unused_by_turns, rung)
