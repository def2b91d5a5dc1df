"""Bias-balanced routing token by token, biases that are equal on all ranks, and two experts that end up even."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.lessons.mixture_of_experts.bias_balanced import loads_of_expert_0
from minitrain.mixture_of_experts import bias_balanced
from tests.mixture_of_experts.plain import EXPERTS, HIDDEN, order, scores, some_tokens


@pytest.mark.parametrize("k", (1, 2, EXPERTS))
def test_as_the_paper_says(k):
    x = some_tokens()
    weight = torch.randn(EXPERTS, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    bias = torch.tensor([0.5, -0.5, 0.1, 0.0], dtype=torch.float64)
    expert, gates, loss = bias_balanced.route(x, weight, bias, k)
    assert loss.item() == 0
    for token, chosen, weights in zip(x.tolist(), expert.tolist(), gates.tolist(), strict=True):
        s = [1 / (1 + math.exp(-score)) for score in scores(token, weight)]
        best = order([score + b for score, b in zip(s, bias.tolist(), strict=True)])[:k]
        assert chosen == best
        assert weights == pytest.approx([s[e] / sum(s[e] for e in best) for e in best], abs=1e-14)


def test_gradients_reach_the_router_and_not_the_bias():
    x = some_tokens()
    weight = torch.ones(EXPERTS, HIDDEN, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(EXPERTS, dtype=torch.float64, requires_grad=True)
    _, gates, _ = bias_balanced.route(x, weight, bias)
    found = torch.autograd.grad((gates[:, 0] * x[:, 0]).sum(), (weight, bias), allow_unused=True)
    assert found[0].abs().max() > 0 and found[1] is None


def test_no_more_choices_than_experts():
    with pytest.raises(AssertionError, match="each expert once"):
        bias_balanced.route(torch.zeros(1, 3), torch.zeros(2, 3), torch.zeros(2), choices=3)


def step(world):
    # Rank r's tokens all choose expert r; of three experts, the last gets none on two ranks.
    bias = torch.zeros(3, dtype=torch.float64)
    load = bias_balanced.update(bias, torch.full((4, 1), world.rank), speed=0.25)
    return load.tolist(), bias.tolist()


def test_load_of_all_ranks(ranks):
    assert ranks(2).run(step) == [([4, 4, 0], [-0.25, -0.25, 0.25])] * 2
    assert ranks(3).run(step) == [([4, 4, 4], [0.0, 0.0, 0.0])] * 3  # at balance no bias moves


def solved(world):
    return loads_of_expert_0(world, tokens=8, gap=1 / 32, speed=1 / 64, steps=7)


def test_a_token_in_each_step(ranks):
    """2u = δ: each step moves one token, until there are four of eight on each side."""
    for size in (1, 2, 3):
        assert ranks(size).run(solved) == [[8, 7, 6, 5, 4, 4, 4]] * size
