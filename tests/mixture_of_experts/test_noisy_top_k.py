"""Noisy top-k gating against the paper's formulas, token by token."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from minitrain.mixture_of_experts import NoisyTopK, noisy_top_k
from minitrain.mixture_of_experts.full.noisy_top_k import TwoLevel
from minitrain.models import counter_rng
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    NORMAL,
    SIZE,
    agrees,
    dense,
    groups_of,
    order,
    random_weights,
    scores,
    softmax,
    some_tokens,
)


def plain_noise(words, number, columns):
    """ε for one token; the evenly distributed number behind it is tested by itself."""
    uniform = counter_rng.uniform(f"{counter_rng.position().key}/0/{words}", torch.tensor([number]), columns)
    return [NORMAL.inv_cdf(u) for u in uniform[0].tolist()]


def noisy(token, number, weight, noise_weight, words):
    clean = scores(token, weight)
    deviation = [math.log(1 + math.exp(s)) for s in scores(token, noise_weight)]
    epsilon = plain_noise(words, number, len(clean))
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
            clean, h, deviation = noisy(token, 20 + number, router.gate.weight, router.noise_gate.weight, "scores")
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


def test_two_levels_as_the_paper_says():
    branches, below, k = 3, 4, 2
    router = random_weights(
        TwoLevel(HIDDEN, branches * below, branches=branches, importance_factor=0.3, load_factor=0.7)
    )
    x = some_tokens()
    router.set_position(5, 9)
    weights = torch.zeros(len(x), branches * below, dtype=torch.float64)
    losses = []
    for group, tokens in enumerate(groups_of(x)):
        upper_load, taken = [0.0] * branches, [0] * branches
        lower_load = [[0.0] * below for _ in range(branches)]
        for place, token in enumerate(tokens):
            number = group * SIZE + place
            upper = noisy(token, number, router.branch_gate.weight, router.branch_noise_gate.weight, "branches")
            lower = noisy(token, number, router.gate.weight, router.noise_gate.weight, "scores")
            primary = gates(upper[1], k)
            for i in range(branches):
                upper_load[i] += chance(*upper, k, i)
                if i not in primary:
                    continue
                taken[i] += 1
                mine = [part[i * below : (i + 1) * below] for part in lower]
                for j, weight in gates(mine[1], k).items():
                    weights[number, i * below + j] = primary[i] * weight
                for j in range(below):
                    lower_load[i][j] += chance(*mine, k, j)
        importance = weights[group * SIZE : (group + 1) * SIZE].sum(0).tolist()
        load = [upper_load[i] * lower_load[i][j] / max(taken[i], 1) for i in range(branches) for j in range(below)]
        losses.append(0.3 * cv2(importance) + 0.7 * cv2(load))
    routing = router.route(x, groups=GROUPS)
    torch.testing.assert_close(dense(routing), weights, rtol=0, atol=1e-12)
    assert routing.auxiliary_loss.item() == pytest.approx(sum(losses) / GROUPS, abs=1e-12)
