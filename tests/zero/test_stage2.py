"""Stage 2: ranks that use less than others keep pace, and a second backward is refused; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch

from minitrain.zero import Zero2
from tests.zero.models import Branches, ddp, gpt, part, same_weights, train, twins


def ranks_use_less(world):
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


def second_backward_is_refused(world):
    """And training can go on after it."""
    model = Zero2(gpt(seed=0), torch.optim.SGD, lr=0.1)
    first, second = (model(*part(world.rank))[1] for _ in range(2))
    first.backward()
    with pytest.raises(RuntimeError, match=r"got a second gradient in one micro-batch; run backward of each"):
        second.backward()
    model.synchronize()
    model.zero_grad()
    reference = gpt(seed=0)
    train(model, world.rank, steps=1)
    ddp(reference, torch.optim.SGD(reference.parameters(), lr=0.1), world.rank, steps=1)
    same_weights(model.module, reference)


@pytest.mark.parametrize("case", (ranks_use_less, second_backward_is_refused))
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
