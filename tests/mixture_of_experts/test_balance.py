"""The load of the busiest expert over a run: within its limits, and the same tokens for every router."""

from __future__ import annotations

import torch

from minitrain.lessons.mixture_of_experts import balance
from minitrain.lessons.pictures import mixture_of_experts as pictures


def ratios(world):
    return {name: balance.busiest_over_mean(name, steps=3) for name in balance.ROUTERS}


def test_every_router(ranks):
    curves = ranks(1).run(ratios)[0]
    for name, values in curves.items():
        assert len(values) == 3 and all(1 <= value <= balance.EXPERTS for value in values), name
    assert curves["expert choice"] == [1.0] * 3  # every expert takes as many tokens as any other
    # The first choice is made before a loss could change the router.
    assert curves["Switch"][0] == curves["Switch, without a loss"][0] == curves["Switch, with z-loss"][0]
    assert len(pictures.balance(curves).axes[0].lines) == len(curves) + 1


def test_same_tokens():
    assert all(torch.equal(one, other) for one, other in zip(balance.batches(2), balance.batches(2), strict=True))
