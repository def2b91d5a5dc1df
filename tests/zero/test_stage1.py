"""Stage 1: lines that leave during backward, parameters that travel in the next forward, and gradients elsewhere."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.zero import Zero1, stage1
from tests.zero.models import Branches, gpt, part, same_weights, train


def in_backward(world, micro_batches):
    """Lines that leave during backward: the same bits, the same messages, and they are under way when it ends."""
    models = [Zero1(gpt(seed=0), torch.optim.AdamW, lr=0.01) for _ in range(2)]
    models[1].send_in_backward(micro_batches)
    ledgers = []
    for model in models:
        with Ledger() as ledger:
            train(model, world.rank, micro_batches=micro_batches)
        ledgers.append(ledger)
    same_weights(models[0].module, models[1].module)
    assert len(ledgers[0].entries) == len(ledgers[1].entries) > 0
    under_way = []
    for micro_batch in range(micro_batches):
        model = models[1]
        with model.no_sync() if micro_batch < micro_batches - 1 else nullcontext():
            model(*part(world.rank))[1].backward()
        under_way.append(len(model._handles))
    for handle in model._handles.values():
        handle.wait()  # else torch is kept from adding to what is on its way
    with pytest.raises(RuntimeError, match=f"got more than passes={micro_batches} gradients in a step"):
        model(*part(world.rank))[1].backward()
    return under_way, len(model.lines)


@pytest.mark.parametrize("micro_batches", (1, 3))
def test_lines_leave_during_the_last_backward(ranks, micro_batches):
    for under_way, lines in ranks(2).run(in_backward, micro_batches):
        assert under_way == [0] * (micro_batches - 1) + [lines]


def parameters_travel_in_the_next_forward(world):
    """Parameters that travel during the next forward: the same bits, also for who reads them in other ways."""
    models = [Zero1(gpt(seed=0), torch.optim.AdamW, lr=0.01) for _ in range(2)]
    late = models[1]
    module = late.module
    with pytest.raises(ValueError, match="layers do not have the parameter embedding.tokens.weight"):
        late.gather_in_forward(module.blocks)
    late.gather_in_forward([module.embedding, *module.blocks, module.norm, module.head])
    for read in (module.state_dict, late.wait, lambda: late(*part(world.rank))):
        for model in models:
            train(model, world.rank, steps=1)
        assert len(late._gathers) == len(late.lines)
        read()
        assert not late._gathers
        same_weights(models[0].module, module)


def unused_parameters_leave_later(world):
    """A rank that has not used a parameter sends its line later, and those after it; all agree on the order."""
    modules = [Branches().double() for _ in range(2)]
    models = [Zero1(each, torch.optim.SGD, lr=0.1, units=[each.first, each.second]) for each in modules]
    modules[1].load_state_dict(modules[0].state_dict())
    models[1].send_in_backward(1)
    for model in models:
        for step in range(2):
            x = torch.full((2, 3), 1.0 + world.rank, dtype=torch.float64)
            model(x, [("first", "second")[(world.rank + step) % 2]]).backward()
            model.synchronize()
            model.step()
            model.zero_grad()
    same_weights(*modules)


def gradients_elsewhere(world):
    """Gradients lie in their line from the start, wherever somebody else puts them; and each is sent once."""
    module = nn.Linear(3, 3, bias=False)
    model = Zero1(module, torch.optim.SGD, lr=0.1)
    for way in ("as it is", "None", "elsewhere", "in another order"):
        model.zero_grad()
        if way == "None":
            module.zero_grad(set_to_none=True)
        if way == "elsewhere":
            module.weight.grad = torch.zeros(3, 3)
        module(torch.arange(3.0)[None]).sum().backward()
        expected = torch.arange(3.0).expand(3, 3)
        if way == "in another order":
            module.weight.grad, expected = module.weight.grad.t(), expected.t()  # the same memory
        model.synchronize()
        (piece,) = model.lines[0].partition.segments(world.rank)
        found = model.lines[0].gradient[: piece.stop - piece.start]
        assert torch.equal(found, expected.flatten()[piece.start : piece.stop]), way
    with pytest.raises(RuntimeError, match=r"synchronize\(\) was called before; call zero_grad\(\)"):
        model.synchronize()
    model.zero_grad()
    module.weight.grad = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match="the gradient of weight is sparse"):
        model.synchronize()
    small = stage1.Zero1(nn.Linear(2, 2), torch.optim.SGD, lr=0.1)
    small.module.zero_grad()
    small(torch.ones(2)).sum().backward()
    with pytest.raises(AssertionError, match="no views any more"):
        small.synchronize()


@pytest.mark.parametrize(
    "case",
    (parameters_travel_in_the_next_forward, unused_parameters_leave_later, gradients_elsewhere),
)
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
