"""The calculator's formulas for any layout, compared with the dry run, which is exact."""

from __future__ import annotations

import random

import pytest

from minitrain.composition.settings import Layout, Model, Steps, check
from minitrain.costs import layout, layout_search
from minitrain.costs.roofline import MACHINES
from minitrain.planning import plan
from minitrain.planning.full import time_model
from minitrain.planning.full.plan_time import shape_of
from minitrain.planning.full.proposals import propose
from minitrain.planning.plan import Coordinate
from tests.drawn import part

pytestmark = pytest.mark.usefixtures("without_shapes")  # the dry run calls small functions very often


def cases(number, experts):
    """Random layouts that fit their model."""
    draw = random.Random(7 + experts)
    found = []
    while len(found) < number:
        model = Model(draw.choice(["gpt2", "xl", "175b", "1t", "8b", "70b"]), experts=experts)
        steps = Steps(batch=0, dtype=draw.choice(["bfloat16", "float32"]))
        cut = Layout(
            dp=draw.choice([1, 2, 4, 16]),
            pp=draw.choice([1, 2, 4, 8]),
            cp=1 if experts else draw.choice([1, 1, 2, 4]),
            tp=draw.choice([1, 2, 4, 8]),
            ep=draw.choice([1, 2, 4]) if experts else 1,
            zero=draw.choice([0, 1, 2, 3]),
            microbatches=draw.choice([1, 2, 4, 8, 32]),
            sequence_parallel=draw.random() < 0.5,
            recompute=draw.choice(["none", "selective", "full"]),
        )
        sequences = draw.choice([1, 2])
        steps = Steps(batch=cut.dp * cut.microbatches * sequences, dtype=steps.dtype)
        try:
            check(model, cut, steps)
        except ValueError:
            continue
        found.append((model, cut, steps, sequences))
    return found


def ours(cut, steps, sequences):
    item = plan.ITEM[steps.dtype]
    axes = cut.dp, cut.pp, cut.cp, cut.tp, cut.ep, cut.zero
    rest = cut.sequence_parallel, cut.recompute, cut.microbatches, sequences
    return layout.Cut(*axes, *rest), layout.Sizes(item, item, 12 if item == 2 else 8)


# States but for padding and step counters, which are far below a millionth; activations to the byte, but with experts
# without the rows of those that have room for more than they get.
@pytest.mark.parametrize(("number", "experts", "states", "activations"), [(60, 0, 1e-4, 0), (30, 8, 1e-3, 0.25)])
def test_a_rank_holds_what_the_dry_run_says(number, experts, states, activations):
    for model, cut, steps, sequences in cases(number, experts):
        mine, sizes = ours(cut, steps, sequences)
        for stage in range(cut.pp):
            found = layout.held(shape_of(model), mine, stage, sizes)
            exact = plan.held(model, cut, steps, Coordinate(stage))
            assert found.pop("activations") == pytest.approx(exact.pop("activations"), rel=activations, abs=0), cut
            assert found == pytest.approx(exact, rel=states), (cut, stage)


@pytest.mark.parametrize("cluster", [time_model.Cluster(MACHINES["H100"]), time_model.fitted(MACHINES["H100"])])
def test_a_step_takes_nearly_what_the_dry_run_says(cluster):
    """Computing is exact; a few messages of embedding, head and norms are left out, which small models wait for."""
    for model, cut, steps, sequences in cases(60, 0):
        mine, sizes = ours(cut, steps, sequences)
        exact = time_model.step_time(model, cut, steps, cluster)
        how = shape_of(model), mine, sizes, cluster.machine
        stages = time_model.stage_seconds(model, cut, steps, cluster)
        busy = [cut.microbatches * sum(each) for each in stages]
        assert layout.seconds(*how, cluster.reached).busy == pytest.approx(busy, rel=1e-6), cut
        found = layout.bar(*how, reached=cluster.reached)
        assert found.again == pytest.approx(exact.again, rel=1e-6), cut
        least = 0.7 if model.preset in ("gpt2", "xl") else 0.95
        assert least * exact.step <= found.step <= 1.05 * exact.step, (model.preset, cut)


def as_layout(cut):
    way = cut.sequence, cut.zero, "1f1b", 2, cut.microbatches, cut.recompute
    return Layout(cut.dp, cut.pp, cut.tp, cut.ep, *way, cp=cut.cp)


@pytest.mark.parametrize(
    ("preset", "gpus", "batch", "gpu"),
    part(
        [
            ("gpt2", 8, 512, "A100 40 GB"),
            ("7b", 64, 512, "H100"),
            ("8b", 128, 512, "H100"),
            ("70b", 512, 1024, "H100"),
            ("175b", 1024, 1536, "A100 80 GB"),
            ("mixtral", 16, 64, "H200"),
        ],
        3,
        "models that are planned",
    ),
)
def test_the_fastest_layout_is_nearly_the_planner_s(preset, gpus, batch, gpu):
    """By the planner's own model at most a tenth slower than its choice, which may be interleaved or without bubble."""
    model, steps, machine = Model(preset), Steps(batch=batch, dtype="bfloat16"), MACHINES[gpu]
    cluster = time_model.fitted(machine)
    found = layout_search.fastest(shape_of(model), gpus, batch, machine, reached=cluster.reached)
    ours = time_model.step_time(model, as_layout(found[0].cut), steps, cluster)
    assert time_model.fits(model, as_layout(found[0].cut), steps, machine)
    assert ours.step <= 1.1 * propose(model, steps, gpus, cluster, keep=1)[0].bar.step
    # Of the same layout both say nearly the same.
    assert found[0].seconds == pytest.approx(ours.step, rel=0.05)
