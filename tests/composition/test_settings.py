"""Settings: what does not fit is named, with layouts that do, before ranks are started; whatever fits can be built."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitrain.composition.layout_settings import ScheduleName
from minitrain.composition.settings import Layout, Model, Steps, check, fitting, problem
from minitrain.pipeline_parallel.full.actions import validate
from minitrain.pipeline_parallel.schedules import SCHEDULES

MODEL, STEPS = Model(layers=6, heads=4, hidden=16, positions=6), Steps(batch=24)

REFUSED = [
    (Layout(dp=2), {"ranks": 3}, "takes 2 ranks, and there are 3"),
    (Layout(tp=3), {}, "heads=4 do not divide by tp=3"),
    (Layout(tp=4), {"heads": 12, "head_size": 2, "kv_heads": 6}, "kv_heads=6 do not divide by tp=4, nor tp by them"),
    (Layout(tp=4), {"mlp_hidden": 50}, "mlp_hidden=50 does not divide by tp=4"),
    (Layout(), {"experts": 2, "dense_first": 5}, "layers=6 has no second block after dense_first=5 whose MLP"),
    (Layout(sequence_parallel=True), {}, "sequence_parallel needs tp"),
    (Layout(pp=4, schedule="interleaved", microbatches=4), {}, "layers=6 are fewer than 8 stages"),
    (Layout(pp=2, schedule="interleaved", microbatches=3), {}, "microbatches=3 do not divide by pp=2"),
    (Layout(dp=4, ep=3), {"experts": 4}, "ep=3 does not divide dp=4"),
    (Layout(dp=4, ep=4), {"experts": 3}, "experts=3 are fewer than ep=4"),
    (Layout(dp=5), {}, "batch=24 does not divide by dp=5 · microbatches=1"),
    (Layout(dp=2, pp=2, zero=2), {}, "zero=2 with pp=2 .* use zero=1"),
    (Layout(dp=2, zero=3), {"experts": 2}, "zero=3 shards a line over all of dp"),
    (Layout(cp=2, pp=2), {"ranks": 2}, "dp=1 · pp=2 · cp=2 · tp=1 takes 4 ranks, and there are 2"),
    (Layout(cp=2), {}, "positions=6 do not divide by 2 · cp=4 chunks, of which cp_mode='zigzag' gives each rank two"),
    (Layout(cp=3, tp=2, cp_mode="ulysses"), {}, "heads=4 do not divide by tp=2 · cp=3, .* zigzag, ring and gather do"),
    (Layout(cp=3, tp=4, cp_mode="ring", sequence_parallel=True), {}, "positions=6 do not divide by cp=3 · tp=4"),
    (Layout(cp=3, cp_mode="ring"), {"experts": 2}, "cp=3 gives a router a part of each sequence, which changes whom"),
]


@pytest.mark.parametrize("layout, more, message", REFUSED)
def test_what_does_not_fit_is_named(layout, more, message):
    more = dict(more)
    ranks = more.pop("ranks", None)
    with pytest.raises(ValueError, match=f"{message}.*; layouts of {ranks or layout.ranks} ranks that fit: "):
        check(replace(MODEL, **more), layout, STEPS, ranks)


@pytest.mark.parametrize("part, change, message", (
    ("model", {"hidden": 10}, "hidden=10 does not divide by heads=4"),
    ("model", {"norm": "group"}, "norm='group' is unknown; use one of"),
    ("model", {"positions_kind": "rope", "rope_base": 0.5}, "rope_base=0.5 must be above 1 and finite"),
    ("model", {"positions_kind": "rope", "hidden": 12}, "hidden=12 over heads=4 .* heads of 3, .* a multiple of 8"),
    ("model", {"rope_base": 50.0}, "rope_base=50 changes nothing with positions_kind='learned'"),
    ("model", {"experts": 2, "experts_per_token": 3}, "experts_per_token=3 are more than experts=2"),
    ("model", {"experts": 2, "router_z_loss": 0.1}, "router_z_loss=0.1 is for experts with router=top_k; leave"),
    ("model", {"experts": 2, "router_loss": -1.0}, "router_loss=-1 must be at least 0 and finite"),
    ("model", {"shared_experts": 1}, "shared_experts=1 needs experts, and the model has none"),
    ("model", {"vocabulary": 255}, "vocabulary=255 is less than the 256"),
    ("steps", {"seed": 1 << 64}, "seed=18446744073709551616 has more than 64 bits"),
    ("steps", {"lr": 1e308}, r"lr=1e\+308 must be at most 1e\+30"),
    ("model", {"dropout": 1.0}, "dropout=1.0 must be"),
    ("layout", {"dp": 0}, "dp=0 must be at least 1"),
    ("steps", {"lr": float("nan")}, "lr=nan must be at least 0"),
    ("steps", {"loss_scale": 3.0}, "loss_scale=3 must be a power of two, and at least 1; use 65536"),
))  # fmt: skip
def test_numbers_and_names(part, change, message):
    parts: dict[str, Any] = {"model": MODEL, "layout": Layout(), "steps": STEPS}
    changed = replace(parts[part])
    for name, value in change.items():
        object.__setattr__(changed, name, value)  # past the tests' own check of types
    with pytest.raises(ValueError, match=message):
        check(**{**parts, part: changed})


def test_the_layouts_that_are_listed_fit():
    listed = [str(layout) for layout in fitting(MODEL, Layout(sequence_parallel=True, tp=2), STEPS, 4)]
    assert listed == ["dp4", "pp4", "dp2×pp2", "dp2×tp2", "pp2×tp2"]  # tp4 would cut 6 positions
    listed = [str(layout) for layout in fitting(MODEL, Layout(cp=3, cp_mode="ring"), STEPS, 6)]
    assert listed == ["dp6", "pp6", "dp3×pp2", "dp3×tp2", "dp2×pp3", "dp2×cp3", "pp3×tp2", "pp2×cp3", "cp3×tp2"]
    with pytest.raises(ValueError, match=r"layouts of 7 ranks that fit: none"):
        check(replace(MODEL, heads=4), Layout(tp=7), STEPS)


names = st.sampled_from(list(get_args(ScheduleName)))


@given(names, st.integers(1, 5), st.integers(1, 12), st.integers(1, 3))
def test_whatever_fits_has_a_schedule(name, pp, microbatches, chunks):
    layout = Layout(pp=pp, schedule=name, microbatches=microbatches, chunks=chunks)
    if problem(replace(MODEL, layers=30), layout, replace(STEPS, batch=27720)) is not None:
        assert name == "interleaved" and microbatches % pp
    elif pp > 1:
        made = SCHEDULES[name](pp, microbatches, *([chunks] if name == "interleaved" else []))
        validate(made)
        assert made.stages == layout.stages


def test_zero_2_with_a_pipeline_says_what_it_would_send():
    """GPT-3 has 175 · 10⁹ parameters: in 16 bits, over pp 8 × tp 8, 5.4 GB of gradients, and 16 times that."""
    layout = Layout(dp=4, pp=8, tp=8, zero=2, microbatches=16)
    said = problem(Model("175b"), layout, Steps(batch=64, dtype="bfloat16"))
    assert said is not None and "about 87.0 GB in a step with microbatches=16 on each rank" in said
    assert "where zero=1 sends 5.4 GB; use zero=1" in said
