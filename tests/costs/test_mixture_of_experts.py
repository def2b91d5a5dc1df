"""Costs of a mixture of experts against enumeration, and against each other."""

from __future__ import annotations

import math
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import mixture_of_experts as costs


def test_capacity_reads_the_factor_as_it_was_written():
    assert costs.capacity(100, 1, 1.15) == 115  # 1.15 · 100 in floating point is 114.99…
    assert costs.capacity(10, 4, 1.25) == 3
    assert costs.capacity(10, 4, 1.25, choices=2) == 6
    assert costs.capacity(7, 8, 1.0) == 0
    assert costs.capacity(6, 3, 2 / 3 * 3) == 4


@pytest.mark.parametrize("tokens, experts, choices", ((4, 3, 1), (3, 4, 2), (5, 2, 1), (2, 4, 4)))
def test_dropped_fraction_by_enumeration(tokens, experts, choices):
    sets = list(combinations(range(experts), choices))
    for places in range(tokens + 1):
        dropped = total = 0
        for chosen in product(sets, repeat=tokens):
            load = [sum(expert in each for each in chosen) for expert in range(experts)]
            dropped += sum(max(count - places, 0) for count in load)
            total += tokens * choices
        found = costs.dropped_fraction(tokens, experts, places, choices)
        assert found == pytest.approx(dropped / total, rel=1e-15, abs=1e-300)


def test_dropped_fraction_at_its_ends():
    assert costs.dropped_fraction(64, 8, 0) == 1.0
    assert costs.dropped_fraction(64, 8, 64) == 0.0
    assert costs.dropped_fraction(0, 8, 0) == 0.0
    assert costs.dropped_fraction(512, 32, 16) > costs.dropped_fraction(512, 32, 20) > 0


def test_losses_between_their_ends():
    """Notebook 12a works these out: eight tokens, of which the experts get parts f, with means P."""
    f, p = [4 / 8, 2 / 8, 1 / 8, 1 / 8], [0.40, 0.25, 0.20, 0.15]
    assert costs.switch_loss(1.0, f, p) == pytest.approx(1.225)
    assert costs.squared_variation([3.65, 2.075, 1.325, 0.95]) == pytest.approx(0.267890625)
    assert costs.squared_variation([6, 5, 3, 2]) == pytest.approx(0.15625)


def test_losses_at_their_ends():
    n, alpha = 8, 0.01
    even = [1 / n] * n
    assert costs.switch_loss_at_balance(alpha) == pytest.approx(alpha * n * sum(f * f for f in even))
    assert costs.gshard_loss_at_balance(alpha, n) == pytest.approx(alpha / n * sum(f * f for f in even))
    importance = [1 / 2, 1 / 2] + [0.0] * (n - 2)
    mean = sum(importance) / n
    variance = sum((value - mean) ** 2 for value in importance) / n
    assert costs.importance_loss_at_worst(alpha, n, 2) == pytest.approx(alpha * variance / mean**2)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 9), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_what_all_ranks_send_is_what_all_receive(routes):
    ranks, hidden, item = range(len(routes)), 3, 2
    sent = [costs.all_to_all(routes, rank, hidden, item) for rank in ranks]
    away = sum(routes[r][s] for r in ranks for s in ranks if r != s) * hidden * item
    assert sum(each.dispatch.bytes for each in sent) == away
    assert sum(each.combine.bytes for each in sent) == away
    assert sum(each.total.bytes for each in sent) == 4 * away
    assert sum(each.dispatch.messages for each in sent) == sum(each.combine.messages for each in sent)
    for each in sent:
        assert each.combine_backward == each.dispatch and each.dispatch_backward == each.combine


def test_all_to_all_by_hand():
    # Rank 0 keeps 5, sends 2 to rank 1 and none to rank 2; gets 3 from rank 1 and 4 from rank 2.
    routes = [[5, 2, 0], [3, 0, 1], [4, 0, 0]]
    found = costs.all_to_all(routes, 0, hidden=8)
    assert found.dispatch == (2 * 8 * 4, 1)
    assert found.combine == ((3 + 4) * 8 * 4, 2)


def test_operations():
    tokens, hidden, inner, experts = 10, 4, 16, 8
    assert costs.expert_flops(tokens, hidden, inner) == tokens * (2 * hidden * inner + 2 * inner * hidden)
    assert costs.router_flops(tokens, hidden, experts) == 2 * tokens * hidden * experts
    assert costs.expert_parameters(hidden, inner) == (hidden + 1) * inner + (inner + 1) * hidden


@pytest.mark.parametrize("tokens", (2, 6, 20))
@pytest.mark.parametrize("turns", (1, 2, 3, 5))
def test_bias_steps_and_overshoot_by_simulation(tokens, turns):
    """In units of δ: token t prefers expert 0 by t + ½, and a step moves the threshold by 2u/δ = `turns`."""
    threshold, loads = 0, []
    for _ in range(3 * tokens):
        load = sum(token + 0.5 > threshold for token in range(tokens))
        loads.append(load)
        threshold += turns * ((2 * load > tokens) - (2 * load < tokens))
    steps = costs.bias_steps(tokens, gap=0.01, speed=turns * 0.01 / 2)
    assert loads[steps] <= tokens / 2 < loads[steps - 1]
    most = max(max(load, tokens - load) for load in loads[steps:])
    assert most <= tokens // 2 + costs.bias_overshoot(gap=0.01, speed=turns * 0.01 / 2)


def test_bias_overshoot_is_reached():
    """Six tokens, four of which change at once: 6 and 0, then 2 and 4, and then 6 and 0 again; so 3 above the mean."""
    assert costs.bias_overshoot(gap=0.5, speed=1.0) == 6 - 3


def test_load_bytes():
    assert costs.load_bytes(experts=256) == 2048


def test_shared_experts():
    """Experts cut in two, twice as many chosen: the same products, and more for the router alone."""
    hidden, inner, tokens = 8, 16, 5
    fine = costs.shared_flops(tokens, 16, 4, 2, hidden, inner // 2)
    whole = costs.shared_flops(tokens, 8, 2, 1, hidden, inner)
    assert fine - whole == costs.router_flops(tokens, hidden, 8)
    alone = 8 * costs.expert_parameters(hidden, inner) + 8 * hidden
    assert costs.shared_parameters(8, 0, hidden, inner) == alone
    assert costs.shared_parameters(8, 1, hidden, inner) == alone + costs.expert_parameters(hidden, inner)


def test_z_loss_and_its_gradient():
    logits = [[0.0, 1.0, -2.0], [3.0, 0.5, 0.0]]
    z = [math.log(sum(math.exp(value) for value in row)) for row in logits]
    assert costs.z_loss(0.5, logits) == pytest.approx(0.5 * (z[0] ** 2 + z[1] ** 2) / 2)
    for expert in range(3):
        shifted = [[list(row) for row in logits] for _ in range(2)]
        shifted[0][1][expert] += 1e-6
        shifted[1][1][expert] -= 1e-6
        slope = (costs.z_loss(0.5, shifted[0]) - costs.z_loss(0.5, shifted[1])) / 2e-6
        assert costs.z_loss_gradient(0.5, logits[1], expert, 2) == pytest.approx(slope, rel=1e-6)
    assert costs.z_loss(1.0, [[1000.0, 0.0]]) == 1000.0**2
