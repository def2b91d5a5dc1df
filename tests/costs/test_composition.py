"""The composed costs by hand, against the files that they are composed of, and against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.composition.gradients import TOGETHER
from minitrain.costs import (
    activations,
    data_parallel,
    memory,
    pipeline,
    recomputation,
    resilience,
    sequence_parallel,
    zero,
)
from minitrain.costs import composition as costs
from minitrain.costs import composition_kept as kept_costs
from minitrain.costs import composition_sent as sent_costs
from minitrain.costs import composition_work as work_costs
from minitrain.costs import tensor_parallel as tensor_costs
from minitrain.costs.composition import Parameter, Shape

GPT3 = Shape(96, 12288, 96, 2048, 50257)
SMALL = Shape(5, 12, 6, 8, 259)
MIXED = Shape(5, 12, 6, 8, 259, tied=False, experts=3, gates=2)


def elements(parameters: list[Parameter]) -> int:
    return sum(each.elements for each in parameters)


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


@given(st.integers(1, 5), st.sampled_from((1, 2, 3, 6)))
def test_stages_together_are_a_tensor_parallel_rank(stages, tensor):
    every = [costs.stage_parameters(SMALL, stages, stage, tensor) for stage in range(stages)]
    one = memory.gpt_shard_parameters(259, 8, 5, 12, tensor)
    copy = -(-259 // tensor) * 12 if stages > 1 else 0  # of the tied table, on the last stage
    assert sum(map(elements, every)) == one + copy
    assert elements(costs.rank_parameters(SMALL, stages, range(stages), tensor)) == one
    assert elements(costs.layer_parameters(SMALL, 0, tensor)) == tensor_costs.layer_parameters(12, 6, tensor)


def test_experts_on_all_ranks_together_are_the_model():
    by_rank = [costs.rank_parameters(MIXED, 2, (0, 1), 1, costs.experts_of(3, 2, rank)) for rank in range(2)]
    assert len({each.name for rank in by_rank for each in rank}) == len({*by_rank[0], *by_rank[1]})
    assert elements(list({*by_rank[0], *by_rank[1]})) == costs.model_parameters(MIXED)
    # One MLP of 8h² + 5h became three, and the router has two matrices of 3h; in layers 1 and 3.
    more = 2 * (2 * (8 * 144 + 60) + 2 * 3 * 12)
    assert costs.model_parameters(MIXED) == memory.gpt_parameters(259, 8, 5, 12, tied=False) + more


def test_lines_and_states_by_hand():
    parameters = costs.layer_parameters(SMALL, 0)
    decaying, others = costs.lines(parameters, 1)[::-1]
    assert [each.name for each in others[:2]] == ["blocks.0.attention_norm.weight", "blocks.0.attention_norm.bias"]
    assert (elements(decaying), elements(others)) == (12 * 144, 13 * 12)
    assert costs.model_states(parameters, 0, 7, 7) == {
        "parameters": 4 * (12 * 144 + 13 * 12),
        "gradients": 4 * (12 * 144 + 13 * 12),
        "optimizer states": 8 * (12 * 144 + 13 * 12) + 2 * 4,
    }
    shards = -(-12 * 144 // 7) + -(-13 * 12 // 7)
    assert costs.model_states(parameters, 1, 7, 7)["optimizer states"] == 8 * shards + 2 * 4
    assert costs.model_states(parameters, 3, 7, 7, item=2) == {
        "parameters": 2 * shards,
        "gradients": 2 * shards,
        "optimizer states": 12 * shards + 2 * 4,  # with a float32 copy
    }
    assert costs.model_states(parameters, 1, 7, 7, optimizer="sgd")["optimizer states"] == 0
    assert costs.TOGETHER == TOGETHER
    whole = costs.stage_parameters(SMALL, 1, 0)
    assert [elements(line) for line in costs.lines(whole, 1)] == [(259 + 8) * 12 + 5 * 12 * 144, 5 * 13 * 12 + 2 * 12]
    large = costs.stage_parameters(Shape(3, 768, 12, 1024, 50257), 1, 0)  # a block has 7.1 million elements
    assert [len(line) for line in costs.lines(large, 1)] == [
        2,
        *[10, 6] * 3,
        2,
    ]  # the embedding alone, each block, norm
    few = costs.stage_parameters(Shape(5, 384, 6, 8, 259), 1, 0)  # a block has 1.8 million: four make more than 6.55
    assert [len(line) for line in costs.lines(few, 1)] == [2 + 4 * 6, 4 * 10, 10 + 2, 6]
    assert [len(line) for line in costs.lines(whole, 1, "muon")] == [2, 5 * 10 + 2, 5 * 6]
    assert len(costs.lines(costs.stage_parameters(SMALL, 1, 0), 2)) == 2 * 5 + 2  # the root has both kinds


@given(st.sampled_from((1, 2, 3, 6)), st.sampled_from(activations.RECOMPUTE), st.booleans())
def test_a_layer_keeps_what_the_paper_says_and_means_of_norms(tensor, recompute, sequence):
    """In 16 bits and with dropout: the masks of both residual additions are the paper's, attention is fused."""
    shape = Shape(1, 12, 6, 24, 259)
    kept = kept_costs.layer_kept(5, shape, tensor, sequence, recompute, item=2, dropout=True)
    paper = activations.layer(5, 24, 12, 6, tensor, sequence, "full" if recompute == "full" else "selective")
    means = 2 * 2 * 2 * 5 * 24 / (tensor if sequence else 1) if recompute != "full" else 0
    sums = 4 * 5 * 6 * 24 / tensor if recompute == "none" else 0
    assert kept == paper + means + sums
    if tensor == 1:
        alone = memory.gpt_layer_activations(5, 24, 12, 6)
        assert kept_costs.layer_kept(5, shape) == sum(alone.values())


def test_a_model_keeps_what_one_device_does():
    whole = 5 * kept_costs.layer_kept(2, SMALL) + sum(kept_costs.ends_kept(2, SMALL, True, True))
    assert whole == memory.gpt_activations(2, 8, 12, 6, 5, 259)


def test_peaks_of_schedules_by_hand():
    row = [(0, "F"), (0, "F"), (0, "B"), (0, "F"), (0, "B"), (0, "B")]
    assert kept_costs.peak_kept(row, {0: 10}, {0: 0}, {0: 0}) == 20
    assert kept_costs.peak_kept(row, {0: 10}, {0: 4}, {0: 9}) == 20 - 4 + 9
    assert kept_costs.peak_kept(row, {0: 10}, {0: 4}, {0: 1}) == 20
    apart = [(0, "F"), (0, "I"), (0, "F"), (0, "I"), (0, "W"), (0, "W")]
    assert kept_costs.peak_kept(apart, {0: 10}, {0: 0}, {0: 0}) == 20  # held until W


@given(st.integers(2, 4), st.booleans())
def test_tensor_payload_is_that_of_its_chapters(tensor, recompute):
    size, how = 2 * 8 * 12 * 4, "full" if recompute else "none"
    loss = 3 * 4 * tensor * 2 * 8
    plain = sent_costs.tensor_payload(2, SMALL, range(5), True, True, tensor, False, how)
    calls = (2 if recompute else 1) * tensor_costs.all_reduces(5).forward + tensor_costs.all_reduces(5).backward
    assert plain == {"all_reduce": (calls + 2) * size, "all_gather": loss}
    cut = sent_costs.tensor_payload(2, SMALL, range(5), True, True, tensor, True)
    ways = sequence_parallel.model_calls(5)
    assert cut["all_gather"] == sum(way.all_gathers for way in ways) * size + loss
    assert cut["reduce_scatter"] == sum(way.reduce_scatters for way in ways) * size
    assert sent_costs.tensor_payload(2, SMALL, range(5), True, True, 1) == {}
    # A mixture sends what an MLP does, and the gradients of its gates: two layers of five, with 7 rows each.
    assert sent_costs.tensor_payload(2, MIXED, range(5), False, False, tensor, rows=7) == {
        "all_reduce": 4 * 5 * size + 2 * 7 * 4,
        "all_gather": 0,
    }
    # With sequence parallelism each of the two keeps what it has gathered, where an MLP gathers it again.
    mixed = sent_costs.tensor_payload(2, MIXED, range(5), True, True, tensor, True, rows=7)
    assert cut["all_gather"] - mixed["all_gather"] == 2 * size
    assert mixed["reduce_scatter"] == cut["reduce_scatter"] and mixed["all_reduce"] == 2 * 7 * 4


def test_context_payload_by_hand():
    """The whole sequence's keys S_K and values S_V have 2 · 8 · 12 elements each; 2 ranks in bfloat16, 5 layers."""
    whole = 2 * 8 * 12

    def sent(mode: str, recompute: str = "none") -> dict[str, int]:
        return sent_costs.context_payload(2, SMALL, 5, mode, 2, recompute=recompute, item=2)

    # Ring, forward: (n − 1)/n · (S_K + S_V). Backward: the same, and the gradients of both in float32.
    once = (2 * whole) // 2
    assert sent("ring") == sent("zigzag") == {"send": 5 * once * (2 + 2 + 4)}
    assert sent("zigzag", "full") == {"send": 5 * once * (2 + 2 + 2 + 4)}
    assert sent("gather") == {"all_gather": 5 * 2 * whole * (2 + 2), "reduce_scatter": 5 * 2 * whole * 4}
    # Queries, keys, values and outputs of a rank's tokens, then their gradients.
    assert sent("ulysses") == {"all_to_all": 5 * 4 * whole // 2 * (2 + 2)}
    assert sent_costs.context_payload(2, SMALL, 5, "ring", 1) == {}


@given(st.integers(1, 7), st.sampled_from(zero.STAGES))
def test_partial_gradients_of_all_shards_are_those_of_the_model(data, stage):
    parameters = costs.stage_parameters(SMALL, 1, 0, 2)
    found = [sent_costs.partial_payload(parameters, stage, data, rank) for rank in range(data)]
    whole = 4 * sequence_parallel.partial_elements(5, 12, 8)
    assert sum(found) == whole if stage else set(found) == {whole}


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 6))
def test_pipelines_send_what_their_chapter_says(ranks, chunks, microbatches):
    cyclic = [stage % ranks for stage in range(ranks * chunks)]
    for rank in range(ranks):
        theirs = pipeline.sent([40] * (ranks * chunks - 1), ranks, microbatches, rank)
        assert sent_costs.pipeline_sent(40, cyclic, microbatches, rank) == theirs.bytes
    down_and_up = [*range(ranks), *reversed(range(ranks))]
    assert sent_costs.pipeline_sent(40, down_and_up, 3, 0) == 2 * 3 * 40  # there is one neighbour
    assert sent_costs.tied_sent(SMALL, down_and_up, 2, 0) == 0  # one rank has both ends
    assert [sent_costs.tied_sent(SMALL, range(3), 2, rank) for rank in range(3)] == [4 * 130 * 12, 0, 4 * 130 * 12]
    assert sent_costs.tied_sent(MIXED, range(3), 2, 0) == 0


def test_data_payload_by_hand():
    parameters = [Parameter("blocks.1.x.weight", 10), Parameter("blocks.1.mlp.experts.0.up.weight", 6, True, True)]
    sizes = [data_parallel.Sizes(each.elements, 4) for each in parameters]
    assert sent_costs.data_payload(parameters, 0, 4, 2, 3) == {
        "all_reduce": data_parallel.payload(sizes) - 2 * 4
    }  # flags
    assert sent_costs.data_payload(parameters, 0, 4, 1, 3) == {"all_reduce": 40}  # an expert that is there once
    assert sent_costs.data_payload(parameters, 1, 4, 2, 3) == {
        "reduce_scatter": 4 * (12 + 6),
        "all_gather": 4 * (12 + 6),
    }
    shared = parameters[:1]
    assert sent_costs.data_payload(shared, 2, 4, 4, 3) == {"reduce_scatter": 3 * 48, "all_gather": 48}
    assert sent_costs.data_payload(shared, 3, 4, 4, 3) == {"reduce_scatter": 3 * 48, "all_gather": 6 * 48}
    assert sent_costs.data_payload(shared, 3, 1, 1, 3) == {}


def test_ordered_sums_by_hand():
    parameters = [Parameter("blocks.1.x.weight", 10)]
    # Onward 10 elements of 4 bytes, from all ranks but the last; back as many, from all but the first.
    one = [sent_costs.ordered_sent(parameters, 0, 3, rank) for rank in range(3)]
    assert one == [{"send": resilience.ordered_sum_sent(40, rank, 3)} for rank in range(3)]
    assert one == [{"send": 40}, {"send": 80}, {"send": 40}]
    # With ZeRO 1 there are 3 shards of 4 elements; back go the shards of all ranks before.
    sent = [sent_costs.ordered_sent(parameters, 1, 3, rank, 2, 4)["send"] for rank in range(3)]
    assert sent == [4 * 12, 4 * (12 + 4), 4 * 8]
    assert sent_costs.ordered_sent(parameters, 1, 3, 0, 2, 4)["all_gather"] == 2 * 12
    assert sent_costs.ordered_sent(parameters, 0, 1, 0) == {}


def test_routes_and_experts_by_hand():
    assert sent_costs.routes(20, 10, 4, 2, None) == 40
    assert sent_costs.routes(20, 10, 4, 1, 1.25) == 20  # three places each
    assert sent_costs.routes(20, 10, 4, 1, 1.0) == 2 * 4 * 2  # two places each
    # Two mixtures; rank 0 has two of three experts: 2/3 of the 40 rows of both ranks come to it.
    large, numbers = 27 * 12 * 4, 8 * 4
    assert sent_costs.expert_payload(20, MIXED, 2, 2, 0) == {"all_to_all": 2 * (4 * large + numbers)}
    assert sent_costs.expert_payload(20, MIXED, 2, 2, 0, again=True) == {"all_to_all": 2 * (6 * large + 2 * numbers)}
    assert sent_costs.expert_payload(20, MIXED, 2, 2, 1)["all_to_all"] == 2 * (4 * 20 * 12 * 4 + 8 * 3)
    assert sent_costs.expert_payload(20, MIXED, 0, 2, 1) == sent_costs.expert_payload(20, MIXED, 2, 1, 0) == {}


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
