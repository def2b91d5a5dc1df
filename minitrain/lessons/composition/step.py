"""The demo of `step`: the same training in every layout that the ranks allow, compared with plain PyTorch.

**The bound for AdamW in float64.** Adam divides by √v + ε, so it enlarges a difference δ of gradients where they are
small: a step changes by at most (1 + 1.17) · η · δ/ε. The first term is the change of m, the second that of √v, with
|m|/√v ≤ √((1−β₁)²/((1−β₂)(1−β₁²/β₂))) = 1.17 for β = 0.9, 0.95. With η = 3 · 10⁻⁴ in two steps and ε = 10⁻⁸ that is
1.3 · 10⁵ · δ: the weights agree to 10⁻⁹ if the gradients do to 7 · 10⁻¹⁵. Rounding errors add up like √K rather than K
(Higham & Mary 2019), and √K · u, with the 6 of `lesson.rounding`, is 3 · 10⁻¹⁴ of gradients of 0.1.

**The bound for SGD in float32.** A step moves a weight by η times its gradient, so after T steps weights differ by at
most T · 6Ku of the largest change (`lesson.rounding`). Losses differ by as much of themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, get_args

import torch

from minitrain.comm import World
from minitrain.composition.optimizer import learning_rate
from minitrain.composition.settings import Decay, Layout, ScheduleName, Settings, Steps, fitting, problem
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.composition import predicted as lesson_predicted
from minitrain.train import build, train_step

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, BOUND = 2, 1e-9


def claims(world: World, blocks: int) -> list[Claim]:
    """All claims of the demo."""
    curves: dict[str, list[float]] = {}
    with world.timed("all layouts"):
        made = [
            like_one_device(world, blocks, curves),
            single_precision(world),
            ordered_sums(world),
            learning_rates(),
        ]
    world.figure(lambda: picture(curves))
    return [*made, *lesson_predicted.claims(world)]


def trainings(world: World, blocks: int) -> Iterator[Settings]:
    """All trainings that the demo compares, with dropout: each layout, schedule and stage of ZeRO, and experts."""
    ranks, steps = world.size, lesson.small_steps(world.size)
    model, deep = (replace(lesson.small_model(ranks, each), dropout=lesson.DROPOUT) for each in (blocks, 2 * blocks))
    for layout in variants(ranks):
        wide = model if layout.stages <= model.sizes.layers else deep
        if problem(wide, layout, steps, ranks) is None:
            yield Settings(wide, layout, steps)
    yield from (Settings(model, layout, steps) for layout in with_context(ranks))
    experts = replace(model, experts=ranks + 2)
    for layout in with_experts(ranks):
        yield Settings(experts, layout, steps)


def variants(ranks: int) -> Iterator[Layout]:
    """The layouts, those with several axes in several ways."""
    for base in fitting(lesson.small_model(ranks), Layout(), lesson.small_steps(ranks), ranks):
        layout = replace(base, microbatches=base.pp)
        yield layout
        several = sum(size > 1 for size in (layout.dp, layout.pp, layout.tp)) > 1
        if layout.pp == ranks > 1:
            yield from (replace(layout, schedule=name) for name in get_args(ScheduleName) if name != "1f1b")
        if several and layout.tp > 1:
            yield replace(layout, sequence_parallel=True, recompute="selective", zero=1 if layout.dp > 1 else 0)
        if several and layout.pp > 1:
            yield replace(layout, recompute="full", zero=1 if layout.dp > 1 else 0)
        if several and layout.pp == 1:
            yield from (replace(layout, zero=zero, microbatches=2) for zero in (2, 3))
    if ranks == 1:
        yield Layout(microbatches=2, recompute="full")


def with_context(ranks: int) -> Iterator[Layout]:
    """Layouts that divide each sequence, in each mode once if the ranks allow that, and with each other axis."""
    if ranks > 1:
        yield Layout(cp=ranks, zero=1)
    if ranks > 2 and ranks % 2 == 0:
        yield Layout(dp=ranks // 2, cp=2, cp_mode="gather", zero=2)
        yield Layout(pp=ranks // 2, cp=2, cp_mode="ring", microbatches=2, recompute="full")
        yield Layout(cp=2, tp=ranks // 2, cp_mode="ulysses", sequence_parallel=True)


def with_experts(ranks: int) -> Iterator[Layout]:
    """Layouts of a model with experts."""
    for ep in range(2, ranks + 1):
        if ranks % ep == 0:
            yield Layout(dp=ranks, ep=ep)
    if ranks % 2 == 0:
        yield Layout(dp=ranks // 2, ep=ranks // 2, tp=2, zero=1)
        yield Layout(tp=ranks, sequence_parallel=True)
    if ranks % 4 == 0:
        yield Layout(dp=ranks // 2, pp=2, ep=2, microbatches=2)


def like_one_device(world: World, blocks: int, curves: dict[str, list[float]]) -> Claim:
    """The claim on losses, norms and weights of each layout, in float64 with AdamW and dropout.

    Args:
        world: This rank.
        blocks: Blocks of the model for each rank.
        curves: Takes the losses of each layout.
    """
    ones: dict[object, lesson.OneDevice] = {}
    what = (
        f"losses, norms and weights in {STEPS} steps of AdamW with dropout, distance from one device's, in every layout"
    )
    cases = {}
    for settings in trainings(world, blocks):
        model = settings.model
        if model not in ones:
            ones[model] = lesson.one_device(settings, STEPS, world.device)
            curves.setdefault("one device", [report.loss for report in ones[model].reports])
        losses: list[float] = []
        found = lesson.distance(settings, ones[model], world.device, losses)
        name = lesson.label(settings.layout) + (f", {model.experts} experts" if model.experts else "")
        if model.sizes.layers == lesson.small_model(world.size, blocks).sizes.layers and not model.experts:
            curves[name] = losses
        cases[name] = Claim("", "10⁻⁹", BOUND, max(found), "1", "derived", "compared", "<=")
    return fold(what, cases, key=True)


def learning_rates() -> Claim:
    """The claim that the learning rate takes the course that torch's schedulers give it, also after a warm-up."""
    cases = {}
    for decay, warmup in product(get_args(Decay), (0, 3)):
        steps = Steps(steps=20, lr=0.1, warmup=warmup, decay=decay)
        plain = torch.optim.SGD([torch.zeros(1)], lr=steps.lr)
        course, far = lesson.torch_course(plain, steps), 0.0
        for number in range(steps.steps):
            far = max(far, abs(learning_rate(steps, number) - plain.param_groups[0]["lr"]))
            plain.step()
            course.step()
        source = "Loshchilov & Hutter 2017, §3"
        cases[f"{decay}, warm-up {warmup}"] = Claim("", "0", 0, far, "1", source, "compared", absolute=1e-12)
    return fold("learning rates of a run, largest distance from those of torch's schedulers", cases)


def single_precision(world: World) -> Claim:
    """The claim on weights of all layouts without experts, in float32 with SGD."""
    worst, allowed = 0.0, 0.0
    steps = replace(lesson.small_steps(world.size), dtype="float32", optimizer="sgd", lr=0.1)
    settings = Settings(lesson.small_model(world.size), Layout(), steps)
    one = lesson.one_device(settings, STEPS, world.device)
    change = max(lesson.far(one.weights[name], start) for name, start in one.start.items())
    allowed = STEPS * lesson.rounding(settings)
    for layout in fitting(settings.model, Layout(), steps, world.size):
        cut = replace(settings, layout=replace(layout, microbatches=layout.pp))
        worst = max(worst, lesson.distance(cut, one, world.device).weights / change)
    what = f"weights after {STEPS} steps of SGD in float32, distance from one device's in the largest change"
    return Claim(what, "12Ku", allowed, worst, "1", "heuristic, no proof", "compared", "<=", key=True)


def ordered_sums(world: World) -> Claim:
    """The claim that ordered sums give the bits of one device, which adds up the same micro-batches one by one."""
    layout = Layout(dp=world.size, microbatches=3, zero=1)
    steps = replace(lesson.small_steps(world.size), dtype="float32", batch=6 * world.size, clip=0.0, ordered_sums=True)
    settings, count = Settings(lesson.small_model(world.size), layout, steps), 3 * world.size
    samples, plain = lesson.samples_of(settings), lesson.plain_model(settings).to(world.device)
    matrices, vectors = ([p for p in plain.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": steps.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    with lesson.same_bits(world), closing(build(settings, world.device)) as training:
        for step in range(STEPS):
            position = step * steps.batch
            for batch in zip(
                *(part.chunk(count) for part in samples.take(range(position, position + steps.batch))), strict=True
            ):
                (plain(*(each.to(world.device) for each in batch))[1] / count).backward()
            for group in adamw.param_groups:
                group["lr"] = learning_rate(steps, step)
            adamw.step()
            adamw.zero_grad()
            train_step(training, step, position, samples)
        pairs = [(training.part.parameters[name], whole) for name, whole in plain.named_parameters()]
        unlike = sum(int((found != whole).sum()) for found, whole in pairs)
    what = f"ordered sums: elements of weights that differ from one device's after {STEPS} steps of AdamW in float32"
    return Claim(what, "0", 0, unlike, "elements", "derived", "compared")


def picture(curves: dict[str, list[float]]) -> Figure:
    """The loss of every layout, one curve over the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (name, losses) in enumerate(curves.items()):
        # Each later curve is thinner, so that those below it can be seen.
        width = 1 + 9 * (1 - number / max(1, len(curves) - 1))
        axes.plot(losses, marker="o", markersize=width + 2, linewidth=width, label=name)
    axes.set(xlabel="step", ylabel="loss, nats per byte", xticks=range(STEPS))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return figure


def demo(world: World, blocks: int = 1) -> list[Claim]:
    """Trains a small GPT in every layout that the ranks allow; the table shows one device's losses and weights in each.

    Args:
        blocks: Blocks of the GPT for each rank.
    """
    return claims(world, blocks)
