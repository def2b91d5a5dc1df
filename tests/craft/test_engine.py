"""The engine's three calls."""

from __future__ import annotations

import torch
from torch import nn

from minitrain.craft.engine import Engine


def steps(world):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.5), micro_batches=2, clip=0.25)
    before = model.weight.detach().clone()
    told = []
    for number in range(4):
        loss = engine(torch.full((2, 3), 10.0 * (1 + world.rank))).sum()
        engine.backward(loss)
        told.append(engine.step())
        if number == 0:
            assert torch.equal(model.weight, before)
    moved = torch.cat([model.weight.detach() - before, torch.zeros(1, 1)], 1)
    return told, model.weight.tolist(), float(moved.norm())


def test_every_second_step_is_the_optimizers_and_clipped(ranks):
    (told, weights, moved), (_, others, _) = ranks(2).run(steps)
    assert told == [False, True, False, True]
    assert weights == others
    assert 0 < moved <= 2 * 0.5 * 0.25 + 1e-6  # two steps of lr times the clipped norm at most
