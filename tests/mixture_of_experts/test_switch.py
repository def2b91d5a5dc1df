"""Switch routing against the paper's formulas, token by token."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch

from minitrain.mixture_of_experts import Switch, switch
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
    same_as_full_form,
    scores,
    softmax,
    some_tokens,
    triples,
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
@pytest.mark.parametrize("factor, capacity", ((0.7, 1), (1.25, 1), (1.4, 2), (None, None)))
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


def test_by_hand():
    """Five tokens, two experts, ⌊0.8 · 5/2⌋ = 2 places: the third that prefers expert 0 finds none."""
    router = Switch(2, 2, capacity_factor=0.8, loss_factor=1.0).double()
    torch.nn.init.eye_(router.gate.weight)
    three = math.log(3)  # probabilities 3/4 and 1/4
    x = torch.tensor([[three, 0], [0, three], [three, 0], [three, 0], [0, three]], dtype=torch.float64)
    routing = router.route(x)
    assert triples(routing) == [(0, 0, 0), (1, 1, 0), (2, 0, 1), (4, 1, 1)]
    assert routing.dropped.tolist() == [[3, 0]]
    assert routing.weight.tolist() == pytest.approx([3 / 4] * 4, abs=1e-15)
    f, p = (3 / 5, 2 / 5), ((3 * 3 + 2) / 20, (3 + 2 * 3) / 20)
    assert routing.auxiliary_loss.item() == pytest.approx(2 * (f[0] * p[0] + f[1] * p[1]), abs=1e-15)
    router.eval()
    assert len(router.route(x).dropped) == 0
    # The small form: the same, with −1 and 0 for token 3.
    expert, gate, loss = switch.route(x, torch.eye(2, dtype=torch.float64), 0.8, 1.0)
    assert expert.tolist() == [[0], [1], [0], [-1], [1]]
    assert gate.flatten().tolist() == pytest.approx([3 / 4, 3 / 4, 3 / 4, 0, 3 / 4], abs=1e-15)
    assert loss.item() == pytest.approx(2 * (f[0] * p[0] + f[1] * p[1]), abs=1e-15)


# 1.15 · 100/5 is 23 places, though 1.15 · 100 is less than 115 in binary; 41 tokens, which 5 experts do not divide.
@pytest.mark.parametrize("tokens, factor", ((100, 1.15), (41, 0.7), (41, 1.25), (41, 5.0), (5, 1.0)))
@pytest.mark.parametrize("seed", range(3))
def test_small_form(tokens, factor, seed):
    router = Switch(7, 5, capacity_factor=factor, loss_factor=0.3)
    route = partial(switch.route, capacity_factor=factor, loss_factor=0.3)
    same_as_full_form(router, route, tokens, seed)


def test_small_form_without_a_capacity():
    same_as_full_form(Switch(7, 5, capacity_factor=None), partial(switch.route, capacity_factor=5), 41)


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


def test_initial_weights_by_a_generator():
    one, two = Switch(HIDDEN, EXPERTS), Switch(HIDDEN, EXPERTS)
    for router in (one, two):
        router.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(one.gate.weight, two.gate.weight)


def test_no_noise_needs_no_place():
    torch.manual_seed(0)
    Switch(HIDDEN, EXPERTS).double().route(some_tokens())
