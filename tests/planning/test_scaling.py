"""The curve of scaling: its counts, its losses, and the published runs beside it."""

from __future__ import annotations

import csv

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.roofline import MACHINES
from minitrain.planning.full import proposals, published, scaling
from minitrain.planning.full.time_model import alone, fitted

pytestmark = pytest.mark.usefixtures("without_shapes")  # a search calls small functions a million times
MODEL = Model("gpt2", layers=4)
STEPS, CLUSTER = Steps(batch=4, dtype="bfloat16"), fitted(MACHINES["H100"])


def test_efficiency_is_one_gpus_time_over_that_of_all():
    layout = Layout(dp=2, pp=4, microbatches=2)
    found = proposals.judge(MODEL, layout, STEPS, CLUSTER)
    one = proposals.judge(MODEL, Layout(), STEPS, CLUSTER)
    assert one.scaling == 1 and one.tokens == pytest.approx(4 * MODEL.sizes.positions / alone(MODEL, STEPS, CLUSTER))
    # Total speed = speed of one · n · efficiency.
    assert found.tokens == pytest.approx(one.tokens * 8 * found.scaling)
    assert 0 < found.scaling < 1 - (found.bar.idle + found.bar.exposed) / found.bar.step + 1e-9


def test_strong_scaling_ends_where_the_batch_is_shared_out_and_weak_does_not():
    strong, weak = (scaling.curve(MODEL, STEPS, 4, CLUSTER, grows, most=511) for grows in (False, True))
    # 4 sequences, 4 layers and a tp of up to 8 are for 128 ranks at most. Weak: a sequence for each GPU.
    assert [*strong] == [64, 16, 4, 1] and [*weak] == [256, 64, 16, 4, 1]
    assert [*strong.values()] == sorted(strong.values()) and strong[1] == weak[1] == 1
    assert strong[4] == weak[4] and strong[64] < weak[64]


def test_the_picture_has_planned_and_published_curves():
    (axes,) = scaling.picture(MODEL, STEPS, 4, CLUSTER, most=16).axes
    strong, failing, weak, *measured = axes.lines
    assert [*strong.get_xdata()] == [*failing.get_xdata()] == [*weak.get_xdata()] == [1, 4, 16]
    assert all(a > b for a, b in zip(strong.get_ydata(), failing.get_ydata(), strict=True))
    assert [line.get_label() for line in measured] == [f"measured, {name}" for name in scaling.SERIES]


def test_failures_leave_as_much_as_llama_3_kept():
    kept = scaling.with_failures({1: 1.0, 16_384: 1.0})
    # Grattafiori et al. 2024, section 3.3.4: "higher than 90% effective training time".
    assert 0.9 < kept[16_384] < 0.95 < 0.999 < kept[1] < 1


def test_published_curves_are_those_of_the_file():
    with published.RUNS.open(encoding="utf-8") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    found = scaling.published_curves()
    few, many = rows["256"], rows["257"]
    # With one batch for both, the time of one device drops out of the ratio.
    ratio = float(few["step_s"]) * int(few["gpus"]) / (float(many["step_s"]) * int(many["gpus"]))
    megatron = found["Megatron-LM: 177B, strong"]
    assert megatron[4608] / megatron[96] == pytest.approx(ratio)
    # As chapter 14 says.
    assert [f"{megatron[gpus]:.0%}" for gpus in (96, 4608)] == ["73%", "65%"]
    assert [len(each) for each in found.values()] == [3, 2, 10]
    assert all(0.4 < value < 1 for each in found.values() for value in each.values())
