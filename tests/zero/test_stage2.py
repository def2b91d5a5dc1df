"""Stage 2: gradients leave during backward, one line at a time, and nothing of them stays but a shard."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minitrain.collectives.full import native
from minitrain.comm.comm import Comm
from minitrain.zero import Zero2, offload, stage2
from minitrain.zero.full.stage2 import Undrained
from tests.zero.models import Branches, ddp, gpt, part, same_weights, train, twins


class Counting:
    """Collectives that know how many reduce-scatters are under way, and in which order lines left."""

    def __init__(self):
        self.sizes, self.under_way, self.most = [], 0, 0

    def __getattr__(self, name):
        return getattr(native, name)

    all_reduce = staticmethod(native.all_reduce)
    all_gather = staticmethod(native.all_gather)
    broadcast = staticmethod(native.broadcast)

    def reduce_scatter(self, tensor, group=None, *, check=None):
        self.sizes.append(tensor.numel())
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        handle = native.reduce_scatter(tensor, group, check=check)
        wait = handle.wait

        def done():
            self.under_way -= 1
            return wait()

        handle.wait = done
        return handle


def leaving(world, form):
    """Whether all leave in backward, how many at once, and what is left of them."""
    counting, module = Counting(), gpt(seed=0, layers=3)
    with mock.patch.object(stage2, "reduce_scatter", counting.reduce_scatter):
        model = form(module, torch.optim.SGD, None if form is stage2.Zero2 else Comm(collectives=counting), lr=0.1)
        model(*part(world.rank))[1].backward()
        in_backward = list(counting.sizes)
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        model.synchronize()
    if form is not stage2.Zero2:  # which sends each parameter as soon as it has a gradient
        assert in_backward == [line.flat.numel() for line in reversed(model.lines)]
    return in_backward == counting.sizes, counting.most, counting.under_way, len(grads)


@pytest.mark.parametrize("form, most", [(Zero2, 1), (Undrained, 4), (stage2.Zero2, 1)])
def test_gradients_leave_during_backward_one_at_a_time(ranks, form, most):
    assert ranks(3).run(leaving, form) == [(True, most, 0, 0)] * 3


def like_ddp(world, form):
    """A GPT with shared weights, whose forward gives two tensors."""
    module, reference = gpt(seed=0), gpt(seed=0)
    train(form(module, torch.optim.AdamW, lr=0.01), world.rank, micro_batches=2)
    ddp(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), world.rank, micro_batches=2)
    same_weights(module, reference)


@pytest.mark.parametrize("form", (Undrained, stage2.Zero2, offload.ZeroOffload))
def test_trains_like_ddp(ranks, form):
    ranks(3).run(like_ddp, form)


def uneven(world):
    """Rank 0 has no backward in the first micro-batch, and uses less in the second; nobody waits for ever."""
    torch.manual_seed(0)
    module, reference = twins(lambda: Branches().double())
    model = Zero2(module, torch.optim.SGD, units=[module.first, module.second], lr=0.1)
    x = torch.ones(3, dtype=torch.float64)
    with model.no_sync():
        if world.rank:
            model(x, ["first", "second"]).backward()
    model(x, ["first"] if world.rank else []).backward()
    model.synchronize()
    model.step()
    (reference(x, ["first", "second"]) / 2 + reference(x, ["first"]) / 2 + reference(x, []) / 2).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    same_weights(module, reference)


def test_ranks_that_use_less(ranks):
    ranks(2).run(uneven)


def refused(world):
    model = Zero2(gpt(seed=0), torch.optim.SGD, lr=0.1)
    first, second = (model(*part(world.rank))[1] for _ in range(2))
    first.backward()
    with pytest.raises(RuntimeError, match=r"got a second gradient in one micro-batch; run backward of each"):
        second.backward()
    model.synchronize()  # leaves nothing behind
    model.zero_grad()
    reference = gpt(seed=0)
    train(model, world.rank, steps=1)
    ddp(reference, torch.optim.SGD(reference.parameters(), lr=0.1), world.rank, steps=1)
    same_weights(model.module, reference)
    rows = nn.Linear(2, 3, bias=False)
    rows.forward = lambda x: nn.functional.embedding(x, rows.weight, sparse=True).sum()
    with pytest.raises(ValueError, match="the gradient of weight is sparse"):
        Zero2(rows, torch.optim.SGD, lr=0.1)(torch.tensor([1])).backward()


def test_a_second_backward_in_one_micro_batch_and_sparse_gradients_are_refused(ranks):
    ranks(2).run(refused)


def recomputed(world, reentrant):
    """A module used twice, and a block whose forward is done again in backward."""
    torch.manual_seed(0)
    module, reference = twins(lambda: nn.ModuleList(nn.Linear(4, 4).double() for _ in range(3)))

    def loss(blocks, x, last):
        for block in (blocks[0], blocks[1], blocks[0]):
            x = torch.tanh(block(x))
        return last(blocks[2], x).sum()

    module.forward = lambda x: loss(module, x, partial(checkpoint, use_reentrant=reentrant))
    model = Zero2(module, torch.optim.SGD, lr=0.1)
    inputs = torch.randn(world.size, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(inputs[world.rank].requires_grad_()).backward()
    model.synchronize()
    model.step()
    (loss(reference, inputs.detach(), lambda block, x: block(x)) / world.size).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    same_weights(module, reference)


@pytest.mark.parametrize("reentrant", (False, True))
def test_a_module_used_twice_and_recomputation(ranks, reentrant):
    ranks(3).run(recomputed, reentrant)
