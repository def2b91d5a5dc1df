"""What is special about the last rung: order, hooks, a second backward, and torch's DDP to the last bit."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from minitrain.data_parallel import DataParallel, overlapped
from tests.data_parallel.models import SMALL, close, gpt, tokens


class Shuffled(nn.Module):
    """Layers that each rank uses in an order of its own, so that gradients arrive in another order on each."""

    def __init__(self, order):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(6))
        self.order = order

    def forward(self, x):
        return sum((place + 1) * self.layers[layer](x).sum() for place, layer in enumerate(self.order))


both = pytest.mark.parametrize("rung", (overlapped.DataParallel, DataParallel), ids=("small", "full"))


def shuffled(world, rung):
    torch.manual_seed(0)
    orders = [random.Random(rank).sample(range(6), 6) for rank in range(world.size)]
    reference = Shuffled(orders[0])
    model = rung(copy.deepcopy(reference), bucket_megabytes=1e-4)
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model.module.order = orders[world.rank]
    model(inputs[world.rank]).backward()
    model.synchronize()
    for rank, order in enumerate(orders):
        reference.order = order
        (reference(inputs[rank]) / world.size).backward()
    close(model.module, reference)
    return len(model.buckets)


@both
def test_ranks_whose_gradients_arrive_in_another_order(ranks, rung):
    assert all(buckets > 3 for buckets in ranks(4).run(shuffled, rung))


def small_second_backward(world):
    model = overlapped.DataParallel(gpt(seed=0))
    first, second = (model(*tokens(1, world.rank))[1] for _ in range(2))
    first.backward()
    with pytest.raises(AssertionError, match="a second backward in a step"):
        second.backward()
    model.synchronize()


def test_small_form_refuses_a_second_backward(ranks):
    ranks(2).run(small_second_backward)


def second_backward(world, bucket_megabytes, then_local):
    """The error does not depend on whether the bucket has left: a run that works would fail with other buckets."""
    model = DataParallel(gpt(seed=0), bucket_megabytes=bucket_megabytes)
    inputs, targets = tokens(1, world.rank)
    first, loss = (model(inputs, targets)[1] for _ in range(2))
    first.backward()
    with pytest.raises(RuntimeError, match=r"got a second gradient before synchronize\(\).* no_sync\(\)"):
        if then_local:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
    model.synchronize()  # leaves nothing behind
    model.zero_grad()
    reference = gpt(seed=0)
    model(inputs, targets)[1].backward()
    model.synchronize()
    everyone = [tokens(1, rank) for rank in range(world.size)]
    sum(reference(*each)[1] / world.size for each in everyone).backward()
    close(model.module, reference)


@pytest.mark.parametrize("bucket_megabytes, then_local", [(SMALL, False), (25.0, True)])
def test_a_second_backward_is_refused_on_every_rank(ranks, bucket_megabytes, then_local):
    ranks(2).run(second_backward, bucket_megabytes, then_local)


def dropped(world):
    """A module outlives its wrapper, and is freed when it is dropped, too."""
    module = gpt(seed=0)
    model = DataParallel(module)
    model(*tokens(1, world.rank))[1].backward()
    model.synchronize()
    module.zero_grad()
    del model
    gc.collect()
    for _ in range(2):  # which the wrapper would refuse
        module(*tokens(1, world.rank))[1].backward()
    gradient, weight = module.blocks[0].mlp.up.weight.grad, weakref.ref(module.blocks[0].mlp.up.weight)
    del module
    gc.collect()
    return gradient, weight() is None


def test_a_wrapper_and_a_model_that_are_dropped_are_freed(ranks):
    (first, freed), (second, too) = ranks(2).run(dropped)
    assert not torch.equal(first, second), "each rank has its own gradient"
    assert freed and too


def double(parameter):
    parameter.grad.mul_(2)


def hooked(world, wrap):
    """Gradients of a module to whose parameters a hook is given after it was wrapped, which doubles them."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    model = wrap(module)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(double)
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(inputs[world.rank]).square().sum().backward()
    if hasattr(model, "synchronize"):
        model.synchronize()
    return [parameter.grad.tolist() for parameter in module.parameters()]


def wrapped(world, bucket_megabytes):
    ours = hooked(world, partial(DataParallel, bucket_megabytes=bucket_megabytes))
    return ours == hooked(world, partial(DistributedDataParallel, bucket_cap_mb=bucket_megabytes))


@pytest.mark.parametrize("bucket_megabytes", (1e-5, 25.0))
def test_what_a_hook_of_the_user_makes_of_a_gradient_is_sent(ranks, bucket_megabytes):
    assert ranks(2).run(wrapped, bucket_megabytes) == [True] * 2
