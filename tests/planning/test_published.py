"""The model of time next to what was published: rows say what their sources print, and errors are what we say."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from minitrain.comm.pictures import save_figure
from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs import composition
from minitrain.costs import composition_work as work
from minitrain.costs.roofline import MACHINES
from minitrain.planning.full import plan_time, published
from minitrain.planning.full.published import CONSTANTS, RUNS
from minitrain.planning.full.time_model import fitted, step_time

pytestmark = pytest.mark.usefixtures("without_shapes")  # a simulation calls small functions very often
LINES = list(csv.DictReader(RUNS.open(encoding="utf-8")))


@cache
def runs():
    return {run.number: run for run in published.read()}


@cache
def off(number):
    return published.off(runs()[number])


def sizes(test):
    return published.errors([off(run.number) for run in runs().values() if test(run)])


@pytest.mark.parametrize(
    "unit", ["tokens/s/GPU", "step time, s", "model TFLOP/s/GPU", "TFLOP/s/GPU with recomputation"]
)
def test_seconds_follow_from_what_the_source_prints(unit):
    some = [line for line in LINES if line["measured"] == unit]
    assert len(some) >= 10
    for line in some:
        run, value = runs()[int(line["id"])], float(line["value"])
        tokens = run.steps.batch * run.model.sizes.positions
        again = "full" if "recomputation" in unit else "none"
        flops = work.step_flops(run.steps.batch, plan_time.shape_of(run.model), 0, again)
        seconds = {
            "tokens/s/GPU": tokens / run.layout.ranks / value,
            "step time, s": value,
        }.get(unit, flops / run.layout.ranks / value / 1e12)
        assert run.seconds == pytest.approx(seconds, rel=2e-3), line["id"]
        assert run.layout.ranks == int(line["gpus"]) or not run.usable
        assert run.speed == pytest.approx(float(line["tokens_per_s_gpu"]), rel=2e-3)


def test_errors_are_what_the_page_says():
    fit, rest = sizes(lambda run: run.fitting), sizes(lambda run: run.testing)
    assert fit.runs + rest.runs == 225
    # Of runs that no constant has seen: half within 6 %, nine of ten within 18 %.
    assert rest.median <= 0.06 and rest.ninth <= 0.18
    large = sizes(lambda run: run.usable and not run.low and "405B" in run.name)
    assert large.runs == 9 and large.worst < 0.105, "Llama 3's 405B rows within 10 %"
    written_out = sizes(lambda run: run.model.dropout > 0)
    assert written_out.runs == 8 and written_out.worst < 0.12, "attention that is not fused"


def test_the_page_has_these_figures_and_this_picture(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    page = " ".join((docs / "predicted.md").read_text("utf-8").split())
    usable = [run for run in runs().values() if run.usable]
    assert (
        f"has {len(runs())} runs" in page
        and f"{sum(run.sure == 'read' for run in runs().values())} were *read*" in page
    )
    assert len(runs()) - len(usable) == 17 and "Seventeen runs are left out" in page
    assert f"on the {sum(run.fitting for run in usable)} runs in 16 bits with an odd number" in page
    ours = CONSTANTS
    for said in (
        f"| products | {ours.products_a:.0%} | {ours.products_h:.0%} |".replace("%", " %"),
        f"| attention's core | {ours.core_a:.0%} | {ours.core_h:.1%} |".replace("%", " %"),
        f"| memory traffic | {ours.moved:g} bytes |",
        f"| hidden messages | {ours.contended:.0%} |".replace("%", " %"),
    ):
        assert said in page
    newest = published.errors([off(run.number) for run in usable if run.source == "DGX Cloud" and not run.low])
    assert f"(DGX Cloud) it promises {-newest.bias:.0%} less".replace("%", " %") in page
    save_figure(published.picture(list(runs().values()), lambda run: off(run.number)), tmp_path / "drawn.svg")
    assert (tmp_path / "drawn.svg").read_bytes() == (docs / "images" / "predicted.svg").read_bytes(), "draw it again"


def test_constants_are_the_best_fit():
    """No constant that is a tenth larger or smaller fits more than one per cent better."""
    some = [run for run in runs().values() if run.fitting and run.layout.pp == 1]  # others take time to simulate
    least = published.loss(some, CONSTANTS)
    for name in CONSTANTS._fields:
        for factor in (1.1, 1 / 1.1):
            changed = CONSTANTS._replace(**{name: factor * getattr(CONSTANTS, name)})
            assert published.loss(some, changed) > 0.99 * least, (name, factor)


def test_more_gpus_change_the_speed_as_measured():
    """Of runs that differ in their number of GPUs alone: where the network matters, and nearly nothing else."""
    alike: dict[tuple, list] = {}
    for run in runs().values():
        if run.testing or run.fitting:
            sequences = plan_time.microbatch(run.layout, run.steps)
            kind = run.model, run.gpu, run.kind, run.layout.tp, run.layout.pp, run.layout.zero, sequences, run.source
            alike.setdefault((*kind, run.layout.recompute, run.half), []).append(run)
    changes = []
    for group in alike.values():
        few, many = min(group, key=lambda run: run.layout.ranks), max(group, key=lambda run: run.layout.ranks)
        if many.layout.ranks >= 4 * few.layout.ranks:
            ours = many.speed * (1 + off(many.number)) / (few.speed * (1 + off(few.number)))
            changes.append(abs(ours - many.speed / few.speed))
    assert len(changes) >= 10 and sum(changes) / len(changes) < 0.04


def test_tensor_parallelism_fills_a_node():
    """Narayanan et al. 2021, §5.4.1: of 162.2 · 10⁹ parameters on 64 GPUs, (pp, tp) = (8, 8) is the fastest."""
    model = Model("175b", 32, 20480, 128, vocabulary=51200)
    assert round(composition.model_parameters(plan_time.shape_of(model)) / 1e9, 1) == 162.2
    cluster = fitted(MACHINES["A100 80 GB"])
    for batch, least in ((32, 1.0), (128, 1.02)):  # with 128 sequences (16, 4) is as fast as far as the model knows
        steps = Steps(batch=batch, dtype="bfloat16")
        seconds = {
            (pp, tp): step_time(model, Layout(1, pp, tp, microbatches=batch, recompute="full"), steps, cluster).step
            for pp, tp in ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))
        }
        assert seconds[8, 8] <= least * min(seconds.values())


def test_runs_of_one_s_own(tmp_path):
    head, first = RUNS.read_text("utf-8").splitlines()[:2]
    own = tmp_path / "own.csv"
    own.write_text(f"{head},flops,memory_GBps,link_GBps\n{first.replace(',H100,', ',mine,')},500e12,2000,300\n")
    (run,) = published.read(own)
    assert (run.machine.flops, run.machine.memory, run.machine.link) == (500e12, 2e12, 300e9)
    assert 1 < published.seconds(run) / published.seconds(runs()[1]) < 989 / 500 * 1.1
    own.write_text(f"{head}\n{first.replace(',H100,', ',mine,')}\n")
    with pytest.raises(ValueError, match=r"own.csv', row 1: gpu='mine' is none of .* give flops, memory_GBps"):
        published.read(own)
    own.write_text("id,gpu\n1,H100\n")
    with pytest.raises(ValueError, match="has no column 'dp'"):
        published.read(own)
