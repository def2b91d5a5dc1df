"""A training step in any layout: losses, norms, gradients and weights are those of plain PyTorch on one device."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from minitrain.composition.layout_settings import Decay
from minitrain.composition.optimizer import learning_rate
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import NotFinite
from minitrain.lessons.composition import common as lesson
from minitrain.train import build, train_step
from tests.drawn import part

MODEL = Model(layers=4, hidden=8, heads=4, positions=8, vocabulary=257, dropout=0.1)
STEPS = Steps(steps=5, batch=8, warmup=1, lr=1e-3, clip=0.5, dtype="float64")


def train(world, layouts, model=MODEL, steps=STEPS):
    one = lesson.one_device(Settings(model, Layout(), steps), 2)
    return [lesson.distance(Settings(model, layout, steps), one, world.device) for layout in layouts]


def check(ranks, layouts, model=MODEL, steps=STEPS, bound=1e-11):
    size = layouts[0].ranks
    found = ranks(size).run(train, layouts, model, steps)
    for layout, distances in zip(layouts, zip(*found, strict=True), strict=True):
        for rank, distance in enumerate(distances):
            assert max(distance) <= bound, f"{layout} {layout}, rank {rank}: {distance}"


SCHEDULES = [
    Layout(pp=2, microbatches=4, schedule=name)
    for name in ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v")
]
MANY = pytest.mark.slow("several layouts on four ranks")
LAYOUTS = {
    "one rank": [Layout(), Layout(microbatches=4), Layout(recompute="full"), Layout(recompute="selective")],
    "one axis": [Layout(dp=2), Layout(tp=2, microbatches=2), Layout(tp=2, sequence_parallel=True)],
    "ZeRO": [Layout(dp=2, zero=zero, microbatches=2) for zero in (1, 2, 3)],
    "two axes": [
        Layout(dp=2, tp=2, recompute="selective"),
        Layout(dp=2, pp=2, microbatches=4, zero=1),
        Layout(pp=2, tp=2, microbatches=2, sequence_parallel=True, recompute="full"),
        Layout(pp=4, microbatches=4, zero=1),
    ],
    "cp": [
        Layout(cp=2, cp_mode="ring", microbatches=2, recompute="full"),
        Layout(cp=2, zero=1, recompute="selective"),
        Layout(cp=2, cp_mode="ulysses", zero=2, microbatches=2),
        Layout(cp=2, cp_mode="gather", zero=3),
    ],
    "schedules": SCHEDULES,
}
MORE = {
    "ZeRO and tp": [Layout(tp=2, dp=2, zero=zero, sequence_parallel=True, microbatches=2) for zero in (0, 1, 2, 3)],
    "cp and others": [
        Layout(cp=4),
        Layout(dp=2, cp=2, cp_mode="ring", zero=1),
        Layout(cp=2, tp=2, cp_mode="ulysses"),
        Layout(cp=2, tp=2, sequence_parallel=True, zero=1, recompute="selective"),
        Layout(pp=2, cp=2, microbatches=2, recompute="full"),
        Layout(pp=2, cp=2, cp_mode="gather", microbatches=4, schedule="zb-v", zero=1),
    ],
}


@pytest.mark.parametrize(
    "name", [*LAYOUTS, *part([pytest.param(name, marks=MANY) for name in MORE], 1, "more layouts")]
)
def test_layouts(ranks, name):
    check(ranks, (LAYOUTS | MORE)[name])


def test_nothing_divides(ranks):
    """Three stages of five layers, a table of 257 rows over three ranks, lines that three ranks cannot share evenly."""
    model, steps = replace(MODEL, layers=5, heads=3, hidden=9, positions=9), replace(STEPS, batch=6)
    layouts = [Layout(pp=3, microbatches=3), Layout(tp=3, sequence_parallel=True), Layout(dp=3, zero=1), Layout(dp=3)]
    check(ranks, layouts, model, steps)


EXPERTS = [
    Layout(dp=4, microbatches=2),
    Layout(dp=4, ep=2, microbatches=2),
    Layout(dp=4, ep=4, zero=1),
    Layout(dp=2, ep=2, pp=2, microbatches=2, recompute="full"),
    Layout(dp=2, ep=2, tp=2, zero=1),
]


OF_ROUTERS = [
    ("switch", {"router_loss": 7.0}),
    ("top_k", {"router_loss": 0.5}),
    ("top_k", {"router_z_loss": 0.25}),
    ("bias_balanced", {"router_bias_speed": 0.125}),
]


@pytest.mark.parametrize("router, option", OF_ROUTERS)
def test_options_of_routers(ranks, router, option):
    """In every layout as on one device, where gradients are those of the factor, and biases of the speed."""
    model = replace(MODEL, experts=6, router=router, dropout=0.0)
    check(ranks, [Layout(dp=2, ep=2, microbatches=2)], replace(model, **option))
    ((name, value),) = option.items()

    def one(value):
        return lesson.one_device(Settings(replace(model, **{name: value}), Layout(), STEPS), 1)

    if router == "bias_balanced":
        # A step up or down, or none where an expert had the mean load.
        moves = one(value).weights["blocks.1.mlp.router.bias"] / value
        assert set(moves.tolist()) <= {-1.0, 0.0, 1.0} and bool(moves.any())
    else:
        none, unit, found = (one(each).gradients["blocks.1.mlp.router.gate.weight"] for each in (0.0, 1.0, value))
        torch.testing.assert_close(found - none, value * (unit - none))
        assert bool((unit - none).any())


@pytest.mark.parametrize("router", ("switch", "expert_choice"))
def test_experts_on_two_ranks(ranks, router):
    check(ranks, [Layout(dp=2, ep=2, microbatches=2)], replace(MODEL, experts=6, router=router))


@MANY
@pytest.mark.parametrize("router", part(("top_k", "expert_choice"), 1, "routers"))
def test_experts(ranks, router):
    check(ranks, EXPERTS, replace(MODEL, experts=6, router=router))


def overflow(world, layout):
    """Weights of one data-parallel rank are no numbers: all ranks stop in this step, and nobody has stepped."""
    training = build(Settings(MODEL, layout, STEPS), world.device)
    if training.axes.place["dp"] == layout.dp - 1:
        with torch.no_grad():
            next(iter(training.part.stages[0].parameters())).fill_(float("inf"))
    before = {name: parameter.clone() for name, parameter in training.part.parameters.items()}
    with pytest.raises(NotFinite) as caught:
        train_step(training, 7, 24, lesson.samples_of(training.settings))
    for name, parameter in training.part.parameters.items():
        assert torch.equal(parameter, before[name]), name
    training.close()
    return str(caught.value)


@pytest.mark.parametrize("layout, ranks_named", ((Layout(dp=2, pp=2), ["3"]), (Layout(dp=2, tp=2), ["2", "3"])))
def test_all_ranks_stop_when_a_loss_is_no_number(ranks, layout, ranks_named):
    messages = set(ranks(4).run(overflow, layout))
    assert len(messages) == 1
    message = messages.pop()
    assert message.startswith("step 7: loss nan")
    assert "; ".join(f"rank {rank}, samples 28 to 31" for rank in ranks_named) in message


def torch_course(plain, steps):
    """The schedule of the learning rate, from torch's own schedulers."""
    rest = max(1, steps.steps - steps.warmup)
    if steps.decay == "cosine":
        after = CosineAnnealingLR(plain, rest, eta_min=steps.lr / 10)
    elif steps.decay == "wsd":
        stable, falling = rest - steps.falling, steps.falling  # of all steps but the warm-up
        after = LambdaLR(plain, lambda number: 1 - math.sqrt(max(0, number - stable) / falling))
    else:
        after = LinearLR(plain, 1.0, 0.0, rest) if steps.decay == "linear" else ConstantLR(plain, 1.0)
    if not steps.warmup:
        return after
    rising = LinearLR(plain, 1 / (steps.warmup + 1), 1.0, steps.warmup)
    return SequentialLR(plain, [rising, after], [steps.warmup])


@pytest.mark.parametrize("warmup", (0, 3))
@pytest.mark.parametrize("decay", get_args(Decay))
def test_learning_rates_are_those_of_torch_s_schedulers(decay, warmup):
    steps = Steps(steps=20, lr=0.1, warmup=warmup, decay=decay)
    plain = torch.optim.SGD([torch.zeros(1)], lr=steps.lr)
    course = torch_course(plain, steps)
    for number in range(steps.steps):
        assert learning_rate(steps, number) == pytest.approx(plain.param_groups[0]["lr"], abs=1e-12)
        plain.step()
        course.step()
