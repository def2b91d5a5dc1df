"""Noisy top-k gating against the paper's formulas, token by token."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from minitrain.mixture_of_experts import NoisyTopK, noisy_top_k
from minitrain.models import counter_rng
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    NORMAL,
    SIZE,
    agrees,
    groups_of,
    order,
    random_weights,
    scores,
    softmax,
    some_tokens,
)


def plain_noise(number, columns):
    """ε for one token; the evenly distributed number behind it is tested by itself."""
    uniform = counter_rng.uniform(f"{counter_rng.position().key}/0/scores", torch.tensor([number]), columns)
    return [NORMAL.inv_cdf(u) for u in uniform[0].tolist()]


def noisy(token, number, weight, noise_weight):
    clean = scores(token, weight)
    deviation = [math.log(1 + math.exp(s)) for s in scores(token, noise_weight)]
    epsilon = plain_noise(number, len(clean))
    return clean, [c + e * d for c, e, d in zip(clean, epsilon, deviation, strict=True)], deviation


def chance(clean, h, deviation, k, i):
    """P(x, i)."""
    others = sorted((value for j, value in enumerate(h) if j != i), reverse=True)
    if len(others) < k:
        return 1.0
    return NORMAL.cdf((clean[i] - others[k - 1]) / deviation[i])


def gates(h, k):
    """G(x): numbers of the kept experts, the best first, and their weights."""
    kept = order(h)[:k]
    return dict(zip(kept, softmax([h[i] for i in kept]), strict=True))


def cv2(values):
    return statistics.pvariance(values) / statistics.fmean(values) ** 2


@pytest.mark.parametrize("k", (1, 2, EXPERTS))
def test_as_the_paper_says(k):
    router = random_weights(NoisyTopK(HIDDEN, EXPERTS, choices=k, importance_factor=0.3, load_factor=0.7))
    x = some_tokens()
    router.set_position(5, 9, first_token=20)
    expected, losses = {}, []
    for group, tokens in enumerate(groups_of(x)):
        importance, load, first = [0.0] * EXPERTS, [0.0] * EXPERTS, []
        for place, token in enumerate(tokens):
            number = group * SIZE + place
            clean, h, deviation = noisy(token, 20 + number, router.gate.weight, router.noise_gate.weight)
            for choice, (i, weight) in enumerate(gates(h, k).items()):
                importance[i] += weight
                first.append((choice, number, i, weight))
            for i in range(EXPERTS):
                load[i] += chance(clean, h, deviation, k, i)
        held = [0] * EXPERTS
        for _, number, i, weight in sorted(first):
            expected[number, i] = (weight, held[i])
            held[i] += 1
        losses.append(0.3 * cv2(importance) + 0.7 * cv2(load))
    agrees(router.route(x, groups=GROUPS), expected, losses)


def test_small_form_draws_noise():
    """Equal scores and no noise given: chance decides, and each of 4 experts is a best one for half the tokens."""
    nothing = torch.zeros(4, 3)
    torch.manual_seed(0)
    expert, gates, _ = noisy_top_k.route(torch.zeros(512, 3), nothing, nothing)
    assert (expert.flatten().bincount(minlength=4) - 256).abs().max() < 6 * math.sqrt(512 / 4)
    torch.testing.assert_close(gates.sum(-1), torch.ones(512))
    with pytest.raises(AssertionError, match="the load compares with the"):
        noisy_top_k.route(torch.zeros(1, 3), nothing, nothing, choices=4)
