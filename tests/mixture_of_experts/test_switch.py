"""Switch routing against the paper's formulas, token by token."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minitrain.mixture_of_experts import MoELayer, Switch, switch
from minitrain.mixture_of_experts.full.switch import INITIAL_SCALE
from minitrain.models import counter_rng
from tests.mixture_of_experts.plain import (
    EXPERTS,
    GROUPS,
    HIDDEN,
    SIZE,
    agrees,
    groups_of,
    order,
    random_weights,
    scores,
    softmax,
    some_tokens,
)


def plain(tokens, weight, capacity):
    """One group: {(token, expert): (weight, place)}, the pairs without a place, and N · Σ f_i · P_i."""
    held, entries, dropped = [0] * EXPERTS, {}, []
    probabilities = [softmax(scores(token, weight)) for token in tokens]
    for s, p in enumerate(probabilities):
        best = order(p)[0]
        if capacity is None or held[best] < capacity:
            entries[s, best] = (p[best], held[best])
        else:
            dropped.append((s, best))
        held[best] += 1
    mean = [sum(column) / len(tokens) for column in zip(*probabilities, strict=True)]
    return entries, dropped, EXPERTS * sum(h / len(tokens) * m for h, m in zip(held, mean, strict=True))


# Of 6 tokens and 4 experts.
@pytest.mark.parametrize("factor, capacity", ((0.7, 1), (1.4, 2), (None, None)))
@pytest.mark.parametrize("jitter", (0.0, 0.3))
def test_as_the_paper_says(factor, capacity, jitter):
    router = random_weights(Switch(HIDDEN, EXPERTS, capacity_factor=factor, loss_factor=0.02, jitter=jitter))
    x = seen = some_tokens()
    router.set_position(1, 2, first_token=30)
    if jitter:
        uniform = counter_rng.uniform(f"{counter_rng.position().key}/0/jitter", 30 + torch.arange(len(x)), HIDDEN)
        seen = x * (1 - jitter + 2 * jitter * uniform)
    entries, losses, dropped = {}, [], []
    for i, tokens in enumerate(groups_of(seen)):
        mine, without, loss = plain(tokens, router.gate.weight, capacity)
        entries |= {(s + i * SIZE, e): value for (s, e), value in mine.items()}
        dropped += [(s + i * SIZE, e) for s, e in without]
        losses.append(0.02 * loss)
    agrees(router.route(x, groups=GROUPS), entries, losses, dropped)
    assert dropped or capacity is None


def test_small_form_in_float32_counts_exactly():
    """Counts are divided in the dtype of x: 1/3 in float32 would be wrong by 10⁻⁸ in a float64 loss."""
    x = torch.eye(3, dtype=torch.float64)
    assert switch.route(x, x, 3, 1.0)[2].item() == pytest.approx(1.0, abs=1e-15)


def test_initial_weights_are_small_and_cut_at_two_deviations():
    hidden = 4096
    weight = Switch(hidden, 8).gate.weight
    deviation = math.sqrt(INITIAL_SCALE / hidden)
    assert INITIAL_SCALE == 0.1
    assert weight.abs().max() <= 2 * deviation
    # The deviation of a normal distribution cut at ±2: √(1 − 4φ(2)/(Φ(2) − Φ(−2))).
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    cut = math.sqrt(1 - 4 * density / math.erf(2 / math.sqrt(2)))
    assert weight.std().item() == pytest.approx(cut * deviation, rel=6 / math.sqrt(2 * 8 * hidden))


def error_on_new_samples(dropout, seed):
    """Of a layer of four experts that is fine-tuned on 64 noisy samples: its error on 2000 others, without noise."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    x, new = torch.randn(1, 64, 16), torch.randn(1, 2000, 16)
    with torch.no_grad():
        y, truth = 3 * teacher(x) + 0.5 * torch.randn(1, 64, 1), 3 * teacher(new)
    mlps = [
        nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Dropout(dropout), nn.Linear(128, 16)) for _ in range(EXPERTS)
    ]
    layer, head = MoELayer(Switch(16, EXPERTS, capacity_factor=None), mlps), nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(200):
        optimizer.zero_grad()
        F.mse_loss(head(x + layer(x)), y).backward()
        optimizer.step()
    with torch.no_grad():
        layer.eval()
        return F.mse_loss(head(new + layer(new)), truth).item()


def test_expert_dropout_helps_a_small_task():
    """Fedus et al. 2021, §2.4: 0.4 within experts, in fine-tuning."""
    plain_error, with_dropout = ([error_on_new_samples(p, seed) for seed in range(2)] for p in (0.0, 0.4))
    assert sum(with_dropout) < 0.95 * sum(plain_error)
