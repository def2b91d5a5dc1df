"""The composed costs by hand and against papers; tests/planning/test_plan.py compares them with real ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitrain.composition.gradients import TOGETHER
from minitrain.composition.model import make_config
from minitrain.composition.settings import Model
from minitrain.costs import (
    activations,
    memory,
    recomputation,
)
from minitrain.costs import composition as costs
from minitrain.costs import composition_kept as kept_costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import composition_states as states
from minitrain.costs import composition_work as work_costs
from minitrain.costs.composition import Shape
from minitrain.costs.roofline import SEVEN_BILLION
from minitrain.lessons.recomputation.common import AliveActivations
from minitrain.models.gpt import GPT
from minitrain.planning.full import plan_time

GPT3 = Shape(96, 12288, 96, 2048, 50257)
SMALL = Shape(5, 12, 6, 8, 259)
MIXED = Shape(5, 12, 6, 8, 259, tied=False, experts=3)


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
    assert states.TOGETHER == TOGETHER
    large = costs.stage_parameters(Shape(3, 768, 12, 1024, 50257), 1, 0)  # a block has 7.1 million elements
    # The embedding alone, each block, and the last norm.
    assert [len(line) for line in states.lines(large, 1)] == [2, *[10, 6] * 3, 2]
    few = costs.stage_parameters(Shape(5, 384, 6, 8, 259), 1, 0)  # a block has 1.8 million: four make more than 6.55
    assert [len(line) for line in states.lines(few, 1)] == [2 + 4 * 6, 4 * 10, 10 + 2, 6]


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
    router = 2 * 16 * 12 * 3  # 2hE for each of 16 tokens
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
    ("preset", "more", "published"),
    [
        ("8b", {"kv_heads": 32, "mlp_hidden": 11008, "vocabulary": 32000}, 6_738_415_616),  # Llama 2 7B
        ("8b", {}, 8_030_261_248),
        ("70b", {}, 70_553_706_496),
        ("405b", {}, 405_853_388_800),
        ("qwen3-0.6b", {}, 596_049_920),
        ("mixtral", {}, 46_702_792_704),
        # Without the module that predicts a second token, and with the 58 · 256 numbers that balance the load.
        ("deepseek-v3", {}, 671_026_419_200),
    ],
)
def test_released_weights_have_as_many_parameters(preset, more, published):
    model = Model(preset, **more)
    shape, dense = plan_time.shape_of(model), not model.sizes.experts
    assert costs.model_parameters(shape) == published
    if dense:
        rank = costs.stage_parameters(shape, 1, 0, tensor=8)
        whole = sum(each.elements for each in rank if each.whole)
        assert sum(each.elements for each in rank) * 8 - 7 * whole == published
    # 6N operations for each token, and 12 · L · h · s for the core of attention (Chowdhery et al. 2022, appendix B).
    if dense and shape.width == shape.hidden:
        products = work_costs.step_flops(1, shape) / 8192 - 12 * shape.layers * shape.hidden * 8192
        assert products == pytest.approx(6 * (published - shape.vocabulary * shape.hidden), rel=1e-3)


@pytest.mark.parametrize(("preset", "active"), [("mixtral", 12.9e9), ("deepseek-v3", 37e9)])
def test_a_token_uses_the_published_part_of_a_mixture(preset, active):
    """Mixtral: 12.9 billion parameters; DeepSeek-V3: 37 billion, of which its report does not count the two tables."""
    shape, kept = plan_time.shape_of(Model(preset)), Model(preset).sizes.experts_per_token
    used = costs.model_parameters(shape) - costs.expert_parameters(shape) * (1 - kept / shape.experts)
    assert used == pytest.approx(active, rel=0.02)
    tokens = shape.positions
    core = 3 * shape.layers * work_costs.core_work(1, shape)
    products = work_costs.step_flops(1, shape, kept * tokens) - core
    assert products == pytest.approx(6 * tokens * (used - shape.vocabulary * shape.hidden), rel=1e-3)


def test_the_courses_seven_billion():
    usual = {"kv_heads": 0, "head_size": 0, "inner": 0, "expert_inner": 0}  # as many as heads, h/a, and 4h twice
    assert plan_time.shape_of(Model("7b"))._replace(**usual) == SEVEN_BILLION


SMALL_LLAMA = Model("llama-tiny", layers=2, hidden=24, heads=6, kv_heads=2, positions=10, vocabulary=259, mlp_hidden=40)
QWEN = {"head_size": 6, "qk_norm": True, "biases": "qkv", "tied": True}


@pytest.mark.parametrize("more", [{}, QWEN, {"norm": "layer", "biases": "all", "positions_kind": "learned"}])
@pytest.mark.parametrize("attention", ["sdpa", "plain"])
def test_a_module_has_what_is_counted(more, attention):
    """Parameters in the module's order, and what autograd keeps of a forward, attention fused or written out."""
    model = replace(SMALL_LLAMA, **more)
    shape, gpt = plan_time.shape_of(model), GPT(replace(make_config(model), attention=attention), seed=0)
    found = [(name, each.numel()) for name, each in gpt.named_parameters()]
    assert found == [each[:2] for each in costs.stage_parameters(shape, 1, 0)]
    tokens = torch.arange(20).view(2, 10)
    with AliveActivations(gpt) as alive:
        gpt(tokens, tokens.clone())
    layer = kept_costs.layer_kept(2, shape, fused=attention == "sdpa")
    assert alive.peak == 2 * layer + sum(kept_costs.ends_kept(2, shape, True, True))
