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
from torch.utils.checkpoint import checkpoint

from minitrain.collectives.full import native
from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.data_parallel import BucketedDataParallel, DataParallel, NaiveDataParallel, overlapped
from tests.data_parallel.models import (
    SMALL,
    Branches,
    close,
    gpt,
    small_equals_full,
    small_equals_one_device,
    tokens,
)

LADDER = (NaiveDataParallel, BucketedDataParallel, DataParallel)


class Watch:
    """Collectives that note the order of events: each gradient when it has arrived, each all-reduce when it starts."""

    broadcast, all_gather = staticmethod(native.broadcast), staticmethod(native.all_gather)
    reduce_scatter = staticmethod(native.reduce_scatter)

    def __init__(self, module):
        self.events = []
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: self.events.append("gradient"))

    def all_reduce(self, tensor, group=None, *, check=None):
        self.events.append("all-reduce")
        return native.all_reduce(tensor, group, check=check)


def started_in_backward(world):
    module = gpt(seed=0)
    watch = Watch(module)
    model = DataParallel(module, Comm(collectives=watch), SMALL)
    model(*tokens(1, world.rank))[1].backward()
    in_backward = watch.events.count("all-reduce")
    model.synchronize()
    return in_backward, len(model.buckets), watch.events.count("all-reduce")


def test_all_buckets_are_started_in_backward(ranks):
    for in_backward, buckets, in_all in ranks(2).run(started_in_backward):
        assert in_backward == buckets == in_all > 3


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
    for size in (2, 3, 4):
        assert all(buckets > 3 for buckets in ranks(size).run(shuffled, rung))


def small_starts_in_backward(world):
    model = overlapped.DataParallel(gpt(seed=0), bucket_megabytes=SMALL)
    with Ledger() as ledger:
        model(*tokens(1, world.rank))[1].backward()
    in_backward = ledger.calls("all_reduce")
    with Ledger() as ledger:
        model.synchronize()
    return in_backward, len(model.buckets), ledger.entries


def test_small_form_starts_all_buckets_in_backward(ranks):
    for in_backward, buckets, later in ranks(2).run(small_starts_in_backward):
        assert in_backward == buckets > 3
        assert later == []


@pytest.mark.parametrize("bucket_megabytes", (SMALL, 25.0))
@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_form_equals_one_device(ranks, size, bucket_megabytes):
    ranks(size).run(small_equals_one_device, overlapped.DataParallel, bucket_megabytes)


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_form_equals_the_full_one(ranks, size):
    """To the last bit on two ranks. The full form's flags lie in the buckets, so more ranks add in another order."""
    ranks(size).run(small_equals_full, overlapped.DataParallel, DataParallel, size == 2, SMALL)


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


@pytest.mark.parametrize("bucket_megabytes", (SMALL, 25.0))
@pytest.mark.parametrize("then_local", (False, True), ids=("synchronizing", "under no_sync"))
def test_a_second_backward_is_refused_on_every_rank(ranks, bucket_megabytes, then_local):
    ranks(2).run(second_backward, bucket_megabytes, then_local)


def higher_order(world):
    """backward(create_graph=True) gives gradients that autograd would record."""
    torch.manual_seed(0)
    reference = nn.Linear(3, 2).double()
    model = DataParallel(copy.deepcopy(reference))
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(inputs[world.rank]).square().sum().backward(create_graph=True)
    model.synchronize()
    (reference(inputs).square().sum() / world.size).backward()
    close(model.module, reference)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")
def test_create_graph(ranks):
    ranks(2).run(higher_order)


class Recomputed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant).tanh()
        return x.sum()


def recomputed(world, reentrant):
    torch.manual_seed(0)
    reference = Recomputed(reentrant)
    model = DataParallel(copy.deepcopy(reference), bucket_megabytes=1e-5)
    inputs = torch.randn(world.size, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    inputs.requires_grad_()
    model(inputs[world.rank]).backward()
    model.synchronize()
    (reference(inputs) / world.size).backward()
    close(model.module, reference)


@pytest.mark.parametrize("reentrant", (False, True))
def test_with_recomputation(ranks, reentrant):
    ranks(2).run(recomputed, reentrant)


def five_steps(world, rung, optimizer, dtype, settings, bucket_megabytes):
    """Both as a user would make them: buckets of the same size, which DDP rebuilds after the first step."""
    module = gpt(seed=0).to(dtype)
    ours = rung(module, bucket_megabytes=bucket_megabytes)
    theirs = DistributedDataParallel(copy.deepcopy(module), bucket_cap_mb=bucket_megabytes)
    optimizers = [optimizer(model.parameters(), **settings) for model in (ours, theirs)]
    for step in range(5):
        inputs, targets = tokens(3 * world.size, step)
        mine = slice(3 * world.rank, 3 * world.rank + 3)
        for model in (ours, theirs):
            model(inputs[mine], targets[mine])[1].backward()
        ours.synchronize()
        close(ours.module, theirs.module, tolerance=0)
        for each in optimizers:
            each.step()
            each.zero_grad()
        close(ours.module, theirs.module, tolerance=0)


@pytest.mark.parametrize("rung", (NaiveDataParallel, BucketedDataParallel, DataParallel))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("bucket_megabytes", (25.0, SMALL))
def test_weights_are_those_of_ddp_to_the_last_bit_on_two_ranks(ranks, rung, dtype, bucket_megabytes):
    ranks(2).run(five_steps, rung, torch.optim.AdamW, dtype, {"lr": 0.01}, bucket_megabytes)
    ranks(2).run(five_steps, rung, torch.optim.SGD, dtype, {"lr": 0.1, "momentum": 0.9}, bucket_megabytes)


def near_ddp(world):
    """More ranks add in another order where buckets differ: within 2γ Σ|gᵣ|/n of each other, as the demo derives."""
    module = gpt(seed=0).float()
    ours = DataParallel(module)
    theirs = DistributedDataParallel(copy.deepcopy(module))
    inputs, targets = tokens(world.size)
    sizes = [torch.zeros_like(parameter) for parameter in module.parameters()]
    for rank in range(world.size):
        alone = copy.deepcopy(gpt(seed=0).float())
        alone(inputs[rank, None], targets[rank, None])[1].backward()
        for size, parameter in zip(sizes, alone.parameters(), strict=True):
            size += parameter.grad.abs() / world.size
    for model in (ours, theirs):
        model(inputs[world.rank, None], targets[world.rank, None])[1].backward()
    ours.synchronize()
    rounding = (world.size + 1) * torch.finfo(torch.float32).eps / 2
    for mine, its, size in zip(ours.parameters(), theirs.parameters(), sizes, strict=True):
        assert ((mine.grad - its.grad).abs() <= 2 * rounding / (1 - rounding) * size * 1.001).all()


def test_gradients_are_near_those_of_ddp_on_more_ranks(ranks):
    for size in (3, 4):
        ranks(size).run(near_ddp)


def forgotten(world):
    """Break it: without synchronize() each rank learns by itself, and nothing complains."""
    model = NaiveDataParallel(Branches())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.full((3,), float(world.rank)), ["first"]).backward()
    optimizer.step()
    return model.module.always.weight.tolist()


def test_forgetting_to_synchronize_makes_ranks_differ(ranks):
    first, second = ranks(2).run(forgotten)
    assert first != second


class WrongEvent(DataParallel):
    """Break it: a hook on the gradient, called before it is added to `.grad`."""

    def __init__(self, module):
        nn.Module.__init__(self)
        BucketedDataParallel.__init__(self, module)
        for parameter in self.trainable.values():
            parameter.register_hook(
                lambda gradient: None if self._local else native.all_reduce(gradient.div_(self.ranks)).wait()
            )

    def _arrive(self, name, parameter):
        pass

    def synchronize(self):
        pass


def wrong_event(world):
    model, reference = WrongEvent(gpt(seed=0)), gpt(seed=0)
    inputs, targets = tokens(2 * world.size)
    mine = slice(2 * world.rank, 2 * world.rank + 2)
    first, second = zip(inputs[mine].split(1), targets[mine].split(1), strict=True)
    with model.no_sync():
        (model(*first)[1] / 2).backward()
    (model(*second)[1] / 2).backward()
    model.synchronize()
    reference(inputs, targets)[1].backward()
    close(model.module, reference)


def test_a_hook_on_the_wrong_event_is_noticed(ranks):
    """It averages the last micro-batch only: the test of accumulation against one device catches it."""
    with pytest.raises(Exception, match="Tensor-likes are not close"):
        ranks(2).run(wrong_event)


def dropped(world):
    model = DataParallel(gpt(seed=0))
    model(*tokens(1, world.rank))[1].backward()
    model.synchronize()
    weight = weakref.ref(model.module.blocks[0].mlp.up.weight)
    del model
    gc.collect()
    return weight() is None


def test_a_model_that_is_dropped_is_freed(ranks):
    assert ranks(2).run(dropped) == [True, True]


def unwrapped(world):
    """The wrapper is dropped, its module is not."""
    module = gpt(seed=0)
    model = DataParallel(module)
    del model
    gc.collect()
    for _ in range(2):  # which the wrapper would refuse
        module(*tokens(1, world.rank))[1].backward()
    return module.blocks[0].mlp.up.weight.grad


def test_a_module_outlives_its_wrapper(ranks):
    first, second = ranks(2).run(unwrapped)
    assert not torch.equal(first, second), "each rank has its own gradient"


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
    ours = [hooked(world, partial(kind, bucket_megabytes=bucket_megabytes)) for kind in LADDER]
    theirs = hooked(world, partial(DistributedDataParallel, bucket_cap_mb=bucket_megabytes))
    return [each == theirs for each in ours]


@pytest.mark.parametrize("bucket_megabytes", (1e-5, 25.0))
def test_what_a_hook_of_the_user_makes_of_a_gradient_is_sent(ranks, bucket_megabytes):
    assert ranks(2).run(wrapped, bucket_megabytes) == [[True] * 3] * 2
