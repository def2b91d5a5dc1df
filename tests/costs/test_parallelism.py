"""The table of divisors agrees with the formulas of the states and of a layer's activations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.costs import activations, memory, zero
from minitrain.costs.parallelism import DIVIDES, Setting, table

ranks = st.integers(1, 64)
small = st.integers(1, 8)


@given(ranks, st.integers(1, 10**12), st.tuples(small, small, st.integers(0, 16)))
def test_zero_divides_the_states_so(n, parameters, each):
    whole = zero.state_bytes(0, parameters, 1, *each)
    for stage, kind in enumerate(("data", "ZeRO 1", "ZeRO 2", "ZeRO 3")):
        held = zero.state_bytes(stage, parameters, n, *each)
        for name, divisor in zip(held, DIVIDES[kind], strict=False):
            assert held[name] * divisor.by(Setting(n)) == pytest.approx(whole[name])


@given(small, small, small, small, small)
def test_a_layers_activations_are_divided_so(batch, chunk, size, heads_each, t):
    heads = heads_each * t
    seq, hidden = chunk * t, heads * size
    setting = Setting(t, attention=heads * seq / hidden)
    whole = activations.layer(batch, seq, hidden, heads)
    ways = {
        "tensor": (t, False, "none"),
        "tensor + sequence": (t, True, "none"),
        "selective recomputation": (1, False, "selective"),
        "full recomputation": (1, False, "full"),
    }
    for kind, way in ways.items():
        held = activations.layer(batch, seq, hidden, heads, *way)
        assert held * DIVIDES[kind].activations.by(setting) == pytest.approx(whole)


@given(small, st.integers(1, 8))
def test_a_first_stage_keeps_as_many_layers(stages, layers_each):
    shape = (1, 8, 16, 4, stages * layers_each, 11)
    whole = activations.model(*shape) - sum(activations.extras(1, 8, 16, 11).values())
    outside = sum(activations.extras(1, 8, 16, 11, pipeline=stages).values())
    held = activations.model(*shape, pipeline=stages) - outside
    assert held * DIVIDES["pipeline"].activations.by(Setting(stages)) == whole


@pytest.mark.parametrize("t", (2, 4, 8))
def test_tensor_parallelism_divides_parameters_nearly_so(t):
    shape = (50257, 1024, 48, 6144)
    found = memory.gpt_parameters(*shape) / memory.gpt_shard_parameters(*shape, t)
    divisor = DIVIDES["tensor"].parameters
    assert divisor.text == "t, nearly"
    assert 0.99 * divisor.by(Setting(t)) < found < divisor.by(Setting(t))


@given(st.integers(0, 10**6), st.integers(1, 10**6), ranks)
def test_experts(dense, expert, ep):
    """`ep` experts, one on each rank, beside what is dense."""
    divisor = DIVIDES["expert"].parameters.by(Setting(ep, experts=ep * expert / (dense + ep * expert)))
    assert (dense + expert) * divisor == pytest.approx(dense + ep * expert)


def test_recomputation_and_data_parallelism_divide_no_states():
    for kind in ("data", "selective recomputation", "full recomputation"):
        assert {divisor.by(Setting(8, 2.0)) for divisor in DIVIDES[kind][:3]} == {1.0}


def test_alone_nothing_is_divided_by_ranks():
    for kind, each in DIVIDES.items():
        if "recomputation" not in kind:
            assert [divisor.by(Setting(1, 2.0)) for divisor in each[:4]] == [1.0] * 4


def test_table_has_a_line_for_each_kind():
    rows = table()
    assert [row.kind for row in rows] == list(DIVIDES)
    assert rows[3][1:5] == ("n", "n", "n", "n")
    assert all(row.source for row in rows)
