"""The formulas: against published numbers, against sums made another way, and where they end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import memory, recomputation, tensor_parallel
from minitrain.costs import roofline as costs
from minitrain.costs.roofline import MACHINES

sizes = st.integers(1, 10_000)


def test_ridge_points_as_published():
    # Austin et al. 2025: 295 for an H100, 240 for a TPU v5e (with a bandwidth of 0.82 TB/s in place of 0.81).
    ridges = {name: round(machine.ridge) for name, machine in MACHINES.items()}
    assert ridges == {"A100 40 GB": 201, "A100 80 GB": 153, "H100": 295, "H200": 206, "TPU v5e": 243}


@given(sizes, sizes, sizes, st.sampled_from([1, 2, 4, 8]))
def test_intensity_of_a_product_is_below_each_of_its_limits(m, k, n, item):
    work = costs.matrix_product(m, k, n, item)
    # 1 / intensity = w/2 · (1/m + 1/k + 1/n): the smallest side decides.
    assert 1 / work.intensity == pytest.approx(item / 2 * (1 / m + 1 / k + 1 / n))
    assert work.intensity < costs.small_batch_intensity(min(m, k, n), item)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_bounds_are_at_most_a_factor_of_two_apart(compute, traffic):
    lower, upper = costs.bounds(compute, traffic)
    assert lower <= upper <= 2 * lower


def test_operations_of_known_models():
    # Brown et al. 2020, table D.1: 174.6 billion parameters and 3.14e23 operations. 314 ZFLOP.
    gpt3 = memory.gpt_parameters(50257, 2048, 96, 12288)
    assert gpt3 == pytest.approx(174.6e9, rel=1e-3)
    assert costs.six_n(gpt3, 300e9) == pytest.approx(3.14e23, rel=2e-3)
    # Attention's part of a step, which 6N leaves out: 2.8 % for GPT-3, and more where a model is narrow and s is long.
    shape = (1, 2048, 12288, 96, 50257)
    assert costs.six_n_misses(*shape, 2048)["attention"] / costs.six_n(gpt3, 2048) == pytest.approx(0.0277, rel=1e-2)
    # Llama 2 of 7B, 4096 positions.
    llama = costs.flops_per_token(6.74e9, 32, 4096, 4096)
    assert llama / costs.flops_per_token(6.74e9) == pytest.approx(1.159, abs=1e-3)


def test_utilization_as_published():
    # Chowdhery et al. 2022, §4.1: 238.3 thousand tokens a second on 6144 TPU v4 are 46.2 % MFU.
    each = costs.flops_per_token(540.35e9, 118, 48 * 256, 2048)
    assert costs.utilization(238.3e3 * each, 1, 6144, 275e12) == pytest.approx(0.462, abs=5e-4)
    # Touvron et al. 2023a, §2.4: 380 tokens a second and GPU, 1.4T tokens on 2048 A100 take about 21 days.
    assert 1.4e12 / (380 * 2048) / 86400 == pytest.approx(21, abs=0.5)
    assert costs.utilization(380 * costs.six_n(65.2e9, 1), 1, 1, 312e12) == pytest.approx(0.476, abs=1e-3)


def test_thresholds_as_the_book_has_them():
    # Austin et al. 2025: TPU v5p, C = 4.59e14 and W_ici = 1.8e11, needs 2,550 tokens on each chip.
    assert costs.tokens_to_hide_gradients(10**9, 4.59e14, 1.8e11) == pytest.approx(2550, rel=1e-3)
    # Their Y < F·W_ici/C for the MLP alone; a whole layer has 12h² weights for two all-reduces, 6h² for one.
    whole = costs.most_tensor_ranks(4096, 4.59e14, 1.8e11) - 1
    assert whole == pytest.approx(3 / 4 * 4 * 4096 / 2550, rel=1e-3)


@pytest.mark.parametrize("seq", [0, 2048])
def test_most_tensor_ranks_make_both_times_equal(seq):
    machine, hidden, batch, item = MACHINES["H100"], 12288, 1, 2
    ranks = costs.most_tensor_ranks(hidden, machine.flops, machine.link, seq, item)
    length = seq or 128
    products = recomputation.layer_flops(batch, length, hidden) - (
        0 if seq else recomputation.core_flops(batch, length, hidden)
    )
    payload = tensor_parallel.payload(batch, length, hidden, item)
    sends = 2 * 2 * (ranks - 1) / ranks * payload / machine.link
    assert products / ranks / machine.flops == pytest.approx(sends)
    backward = costs.most_tensor_ranks(hidden, machine.flops, machine.link, seq, item, backward=True)
    assert backward - 1 == pytest.approx(2 * (ranks - 1))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.lists(st.integers(0, 9), min_size=6, max_size=6))
def test_prefetching_is_between_the_bounds(products, gathers):
    gathers = gathers[: len(products)]
    lower, upper = costs.bounds(sum(products), sum(gathers))
    assert lower <= costs.prefetched_time(products, gathers) <= upper


def test_the_three_walls():
    walls = costs.walls(175e9, 300e9, 128, MACHINES["A100 80 GB"])
    needed = {name: wall.needed for name, wall in walls.items()}
    assert needed == {"compute": 3.15e23, "memory": 700e9, "communication": 89.6e12}
    assert walls["compute"].times / 86400 / 365 == pytest.approx(32, rel=0.01)  # years of one A100
    assert walls["memory"].times == 8.75
    # What a device of 1024 really sends, 8 for each replica, in 16 bits; and the 1024 together, which is 89 TB again.
    each = costs.really_sent(175e9, 128, 8)
    assert each == pytest.approx(86.8e9, rel=1e-3)
    assert 1024 * each == pytest.approx(2 * 127 * 350e9)
