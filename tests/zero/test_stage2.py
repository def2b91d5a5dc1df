"""Stage 2: gradients leave during backward, one line at a time, and nothing of them stays but a shard."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minitrain.collectives.full import native, ring
from minitrain.comm import Ledger
from minitrain.comm.comm import Comm
from minitrain.costs import zero as costs
from minitrain.lessons.zero.stage2 import most_gradients
from minitrain.zero import Zero1, Zero2, stage2
from minitrain.zero.full.stage2 import Undrained
from tests.zero import small
from tests.zero.models import Branches, ddp, gpt, lines, part, same_weights, train


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


def leaving(world, stage):
    counting = Counting()
    model = stage(gpt(seed=0, layers=3), torch.optim.SGD, Comm(collectives=counting), lr=0.1)
    model(*part(world.rank))[1].backward()
    in_backward = list(counting.sizes)
    grads = [p.grad for p in model.module.parameters() if p.grad is not None]
    model.synchronize()
    sizes = [line.flat.numel() for line in reversed(model.lines)]
    return in_backward == counting.sizes == sizes, counting.most, counting.under_way, len(grads)


def test_lines_leave_during_backward_one_at_a_time(ranks):
    assert ranks(3).run(leaving, Zero2) == [(True, 1, 0, 0)] * 3
    assert ranks(3).run(leaving, Undrained) == [(True, 4, 0, 0)] * 3


def undrained(world):
    module, reference = gpt(seed=0), gpt(seed=0)
    train(Undrained(module, torch.optim.AdamW, lr=0.01), world.rank, micro_batches=2)
    ddp(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), world.rank, micro_batches=2)
    same_weights(module, reference)


def test_without_draining_the_result_is_the_same(ranks):
    ranks(2).run(undrained)


def peaks(world):
    return [most_gradients(world, stage, 6, 64)[0] / (4 * 64 * 64) for stage in (Zero1, Zero2, Undrained)]


def test_draining_keeps_the_peak_small(ranks):
    for stage1, drained, without in ranks(2).run(peaks):
        assert 6 < stage1 < 7.2
        assert 3 + 3 < drained < 6.2  # half of six layers, and three whole ones
        assert without > 6 + 3


def accumulated(world, stage):
    """What a step sends with three micro-batches, and what theory says."""
    model = stage(gpt(seed=0), torch.optim.SGD, Comm(collectives=ring), lr=0.1)
    with Ledger() as ledger:
        train(model, world.rank, steps=1, micro_batches=3)
    number = 2 if stage is Zero2 else 1
    predicted = costs.step_traffic(number, lines(model), world.size, world.rank, 3)
    return (ledger.sent, ledger.messages), tuple(predicted)


def test_accumulation_sends_each_micro_batch(ranks):
    first = ranks(3).run(accumulated, Zero1)
    second = ranks(3).run(accumulated, Zero2)
    for (sent, predicted), (more, expected) in zip(first, second, strict=True):
        assert sent == predicted and more == expected
        assert more[0] == 2 * sent[0]  # (A + 1) / 2


def uneven(world):
    """Rank 0 has no backward in the first micro-batch, and uses less in the second; nobody waits for ever."""
    torch.manual_seed(0)
    module = Branches().double()
    reference = Branches().double()
    reference.load_state_dict(module.state_dict())
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


def second_gradient(world):
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


def test_a_second_backward_in_one_micro_batch_is_refused(ranks):
    ranks(2).run(second_gradient)


class Shared(nn.Module):
    """A module used twice, and blocks whose forward is done again in backward."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x):
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            x = torch.tanh(block(x))
        if self.reentrant is not None:
            return checkpoint(self.blocks[2], x, use_reentrant=self.reentrant).sum()
        return self.blocks[2](x).sum()


def shared(world, reentrant):
    torch.manual_seed(0)
    module = Shared(reentrant)
    reference = Shared()
    reference.load_state_dict(module.state_dict())
    model = Zero2(module, torch.optim.SGD, lr=0.1)
    inputs = torch.randn(world.size, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model(inputs[world.rank].requires_grad_()).backward()
    model.synchronize()
    model.step()
    (reference(inputs.detach()) / world.size).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    same_weights(module, reference)


@pytest.mark.parametrize("reentrant", (None, False, True))
def test_a_module_used_twice_and_recomputation(ranks, reentrant):
    ranks(3).run(shared, reentrant)


def sparse(world):
    class Rows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x):
            return nn.functional.embedding(x, self.weight, sparse=True).sum()

    model = Zero2(Rows(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match="the gradient of weight is sparse"):
        model(torch.tensor([1])).backward()


def test_sparse_gradients_are_refused(ranks):
    ranks(2).run(sparse)


# ---- the small form ----


@pytest.mark.parametrize("size", (2, 3, 4))
def test_small_form_is_one_device(ranks, size):
    ranks(size).run(small.like_one_device, stage2.Zero2)


def like_ddp(world):
    """A GPT with shared weights, whose forward gives two tensors."""
    module, reference = gpt(seed=0), gpt(seed=0)
    train(stage2.Zero2(module, torch.optim.AdamW, lr=0.01), world.rank, micro_batches=2)
    ddp(reference, torch.optim.AdamW(reference.parameters(), lr=0.01), world.rank, micro_batches=2)
    same_weights(module, reference)


def test_small_form_trains_like_ddp(ranks):
    ranks(3).run(like_ddp)


def one_under_way(world):
    """Gradients leave during backward, the next one when the one before is done, and nothing stays of them."""
    counting = Counting()
    start, stage2.reduce_scatter = stage2.reduce_scatter, counting.reduce_scatter
    try:
        model = stage2.Zero2(small.chain(), torch.optim.SGD, lr=0.1)
        small.backward(model, small.batch(world.rank, 0))
        in_backward = list(counting.sizes)
        grads = [parameter.grad for parameter in model.module.parameters() if parameter.grad is not None]
        model.synchronize()
    finally:
        stage2.reduce_scatter = start
    return in_backward == counting.sizes, len(in_backward), counting.most, counting.under_way, grads


def test_small_form_has_one_gradient_under_way(ranks):
    assert ranks(3).run(one_under_way) == [(True, len(list(small.chain().parameters())), 1, 0, [])] * 3


@pytest.mark.parametrize("size", (1, 2, 3, 4))
def test_small_form_has_the_bits_of_the_full_form(ranks, size):
    ranks(size).run(small.like_full_form, stage2.Zero2, Zero2)
