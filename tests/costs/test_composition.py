"""The composed costs by hand and against papers; tests/planning/test_plan.py compares them with real ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.composition.gradients import TOGETHER
from minitrain.costs import (
    activations,
    memory,
    recomputation,
)
from minitrain.costs import composition as costs
from minitrain.costs import composition_kept as kept_costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs.composition import Shape

GPT3 = Shape(96, 12288, 96, 2048, 50257)
SMALL = Shape(5, 12, 6, 8, 259)
MIXED = Shape(5, 12, 6, 8, 259, tied=False, experts=3, gates=2)


def test_layers_of_stages_by_hand():
    assert costs.layer_counts(5, 3) == [2, 2, 1]
    assert [list(costs.layers_of(5, 3, stage)) for stage in range(3)] == [[0, 1], [2, 3], [4]]
    assert [len(costs.experts_of(5, 3, rank)) for rank in range(3)] == [2, 2, 1]
    assert [number for rank in range(3) for number in costs.experts_of(5, 3, rank)] == list(range(5))
    for stages in (0, 6):
        with pytest.raises(ValueError, match=f"stages={stages} must be at least 1 and at most layers=5"):
            costs.layer_counts(5, stages)


def test_gpt_3_has_as_many_parameters_as_published():
    assert costs.model_parameters(GPT3) == memory.gpt_parameters(50257, 2048, 96, 12288)
    assert round(costs.model_parameters(GPT3) / 1e9, 1) == 174.6  # Brown et al. 2020, table D.1


def test_lines_of_models_larger_than_those_that_tests_train():
    assert costs.TOGETHER == TOGETHER
    large = costs.stage_parameters(Shape(3, 768, 12, 1024, 50257), 1, 0)  # a block has 7.1 million elements
    # The embedding alone, each block, and the last norm.
    assert [len(line) for line in costs.lines(large, 1)] == [2, *[10, 6] * 3, 2]
    few = costs.stage_parameters(Shape(5, 384, 6, 8, 259), 1, 0)  # a block has 1.8 million: four make more than 6.55
    assert [len(line) for line in costs.lines(few, 1)] == [2 + 4 * 6, 4 * 10, 10 + 2, 6]


@given(st.sampled_from((1, 2, 3, 6)), st.sampled_from(activations.RECOMPUTE), st.booleans())
def test_a_layer_keeps_what_the_paper_says_and_means_of_norms(tensor, recompute, sequence):
    """In 16 bits and with dropout: the masks of both residual additions are the paper's, attention is fused."""
    shape = Shape(1, 12, 6, 24, 259)
    kept = kept_costs.layer_kept(5, shape, tensor, sequence, recompute, item=2, dropout=True)
    paper = activations.layer(5, 24, 12, 6, tensor, sequence, "full" if recompute == "full" else "selective")
    means = 2 * 2 * 2 * 5 * 24 / (tensor if sequence else 1) if recompute != "full" else 0
    sums = 4 * 5 * 6 * 24 / tensor if recompute == "none" else 0
    assert kept == paper + means + sums


def test_routes_by_hand():
    assert sent_costs.routes(20, 10, 4, 2, None) == 40
    assert sent_costs.routes(20, 10, 4, 1, 1.25) == 20  # three places each
    assert sent_costs.routes(20, 10, 4, 1, 1.0) == 2 * 4 * 2  # two places each


@given(st.integers(1, 5), st.sampled_from((1, 2, 3, 6)), st.sampled_from(activations.RECOMPUTE))
def test_stages_together_do_the_work_of_a_step(stages, tensor, recompute):
    shape = SMALL._replace(vocabulary=252)  # no padding
    works = [work_costs.stage_work(2, shape, stages, stage, 0, tensor, recompute) for stage in range(stages)]
    again = {"none": 0, "selective": recomputation.core_flops(2, 8, 12), "full": recomputation.layer_flops(2, 8, 12)}
    own = recomputation.step_flops(2, 8, 12, 5, 252)
    assert tensor * sum(map(sum, works)) == own + 5 * again[recompute]
    assert work_costs.step_flops(2, shape, recompute=recompute) == own + 5 * again[recompute]


def test_experts_work_by_rows():
    rows = 16
    dense, mixture = (work_costs.layer_work(2, MIXED, layer, rows, 1) for layer in (0, 1))
    router = 2 * 2 * 16 * 12 * 3  # two matrices, 2hE for each of 16 tokens
    assert mixture.forward == dense.forward + router  # as many rows as tokens
    half = work_costs.layer_work(2, MIXED, 1, rows, 2)
    assert half.weight - router == dense.weight // 2  # experts are cut, routers are not


def test_published_days():
    """Narayanan et al. 2021, §5.1, who leave out what is small: 34 and 84 days."""
    trillion = Shape(128, 25600, 160, 2048, 51200)
    for shape, batch, tokens, ranks, speed, published in (
        (GPT3, 1536, 300e9, 1024, 140e12, 34),
        (trillion, 3072, 450e9, 3072, 163e12, 84),
    ):
        parameters = costs.model_parameters(shape)
        estimate = work_costs.days_estimate(tokens, parameters, ranks, speed)
        assert round(estimate) == published
        exact = work_costs.days(
            tokens, batch * 2048, work_costs.step_flops(batch, shape, recompute="full"), ranks, speed
        )
        assert shape is not GPT3 or round(100 * (exact / estimate - 1), 1) == 2.7  # as `days_estimate` says
        terms = 1 + 2048 / (6 * shape.hidden) + shape.vocabulary / (16 * shape.layers * shape.hidden)
        assert exact / estimate == pytest.approx(terms * 12 * shape.layers * shape.hidden**2 / parameters, rel=1e-12)


@pytest.mark.parametrize(
    ("sizes", "kv_heads", "inner", "vocabulary", "published"),
    [
        ((32, 4096, 32), 32, 11008, 32000, 6_738_415_616),  # Llama 2 7B
        ((32, 4096, 32), 8, 14336, 128256, 8_030_261_248),  # Llama 3 8B
        ((80, 8192, 64), 8, 28672, 128256, 70_553_706_496),
        ((126, 16384, 128), 8, 53248, 128256, 405_853_388_800),
    ],
)
def test_shared_keys_and_gated_mlps(sizes, kv_heads, inner, vocabulary, published):
    """As many parameters as the released weights have, and the biases that Llama leaves out."""
    shape = Shape(*sizes, 8192, vocabulary, False, learned=False, kv_heads=kv_heads, inner=inner, gated=True)
    biases = shape.layers * (5 * shape.hidden + 2 * shape.kv_width + 2 * inner) + shape.hidden
    assert costs.model_parameters(shape) == published + biases
    ranks = [costs.stage_parameters(shape, 1, 0, tensor=8)] * 8
    whole = sum(each.elements for each in ranks[0] if each.whole)
    assert sum(each.elements for rank in ranks for each in rank) - 7 * whole == costs.model_parameters(shape)
    # 6N operations for each token, and 12 · L · h · s for the core of attention (Chowdhery et al. 2022, appendix B).
    products = work_costs.step_flops(1, shape) / 8192 - 12 * shape.layers * shape.hidden * 8192
    assert products == pytest.approx(6 * (published - vocabulary * shape.hidden), rel=1e-3)
