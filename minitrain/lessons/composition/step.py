"""The lesson of `minitrain.composition.step`: the same training in every layout, compared with plain PyTorch.

**The bound for AdamW in float64.** Adam divides by √v + ε, so it enlarges a difference δ of gradients where they are
small: a step changes by at most (1 + 1.17) · η · δ/ε. The first term is the change of m, the second that of √v, with
|m|/√v ≤ √((1−β₁)²/((1−β₂)(1−β₁²/β₂))) = 1.17 for β = 0.9, 0.95. With η = 3 · 10⁻⁴ in two steps and ε = 10⁻⁸ that is
1.3 · 10⁵ · δ: the weights agree to 10⁻⁹ if the gradients do to 7 · 10⁻¹⁵. Rounding errors add up like √K rather than K
(Higham & Mary 2019), and √K · u, with the 6 of `lesson.rounding`, is 3 · 10⁻¹⁴ of gradients of 0.1.

**The bound for SGD in float32.** A step moves a weight by η times its gradient, so after T steps weights differ by at
most T · 6Ku of the largest change (`lesson.rounding`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from torch.utils.flop_counter import FlopCounterMode

from minitrain.comm import Ledger, World
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.rows import Claim, Rows, most
from minitrain.planning import plan
from minitrain.planning.full import plan_time
from minitrain.train import build, forward_backward

STEPS, BOUND, NARAYANAN = 2, 1e-9, "Narayanan et al. 2021, §3.2"


def demo(world: World) -> list[Claim]:
    """Trains a small GPT in every layout of the ranks; the table shows one device's losses and weights in each."""
    rows, n = Rows(), world.size
    dense = replace(lesson.small_model(n), dropout=0.1)
    what = (
        f"losses, norms and weights in {STEPS} steps of AdamW with dropout, distance from one device's, in every layout"
    )
    for model, layouts in ((dense, with_all_axes(n)), (replace(dense, experts=n + 2), with_experts(n))):
        one = lesson.one_device(Settings(model, steps=lesson.small_steps(n)), STEPS, world.device)
        for layout in layouts:
            settings = Settings(model, layout, lesson.small_steps(n))
            apart = most(lesson.distance(settings, one, world.device))
            case = lesson.label(settings)
            rows.add(what, "10⁻⁹", BOUND, apart, "1", case=case, how="compared", relation="<=")

    steps = replace(lesson.small_steps(n), dtype="float32", optimizer="sgd", lr=0.1)
    settings = Settings(lesson.small_model(n), steps=steps)
    one = lesson.one_device(settings, STEPS, world.device)
    change = max(lesson.far(one.weights[name], start) for name, start in one.start.items())
    what = f"weights after {STEPS} steps of SGD in float32, distance from one device's in the largest change"
    bound, source = STEPS * lesson.rounding(settings), "heuristic, no proof"
    every = [replace(layout, microbatches=layout.pp) for layout in fitting(settings.model, Layout(), steps, n)]
    for layout in every:
        apart = lesson.distance(replace(settings, layout=layout), one, world.device).weights / change
        rows.add(what, "12Ku", bound, apart, "1", source, case=str(layout), how="compared", relation="<=")
    dropped = Settings(replace(settings.model, dropout=0.1), steps=steps)
    for layout in [*every, replace(every[-1], recompute="full")]:
        sent_and_computed(rows, world, replace(dropped, layout=layout))
    return rows.claims()


def with_all_axes(ranks: int) -> Iterator[Layout]:
    """Each layout of dp, pp and tp, with ZeRO-1 and sequence parallelism where they apply; and one of cp."""
    for layout in fitting(lesson.small_model(ranks), Layout(), lesson.small_steps(ranks), ranks):
        zero = 1 if layout.dp > 1 else 0
        yield replace(layout, microbatches=layout.pp, zero=zero, sequence_parallel=layout.tp > 1)
    if ranks % 2 == 0:
        yield Layout(dp=ranks // 2, cp=2, zero=1)


def with_experts(ranks: int) -> Iterator[Layout]:
    """Experts over all ranks; and with tensor parallelism, with and without sequence parallelism."""
    yield Layout(dp=ranks, ep=ranks)
    if ranks % 2 == 0:
        yield Layout(dp=ranks // 2, ep=ranks // 2, tp=2, zero=1)
        yield Layout(tp=ranks, sequence_parallel=True)


def sent_and_computed(rows: Rows, world: World, settings: Settings) -> None:
    """Claim what the dry run predicts of a step: bytes between stages, and operations.

    With dropout, attention is written out; of a fused kernel torch counts nothing on a CPU.
    """
    model, layout, steps = settings.model, settings.layout, settings.steps
    with closing(build(settings, world.device)) as training, FlopCounterMode(display=False) as counter:
        with Ledger() as ledger:
            forward_backward(training, 0, 0, lesson.samples_of(settings))
    work = plan_time.bubble(model, layout, steps).work[plan.coordinate(layout, world.rank).pp]
    what = "operations of a step on this rank, in every layout, also with recomputation"
    formula, case = "m · of its layers, over tp, and what is computed again", lesson.label(settings)
    rows.add(what, formula, work, counter.get_total_flops(), "1", NARAYANAN, case=case)
    what = "payload of a step along pp on this rank, in every layout"
    formula = "m · b(s/tp)h·w for each boundary and way"
    if layout.pp > 1:
        entries = [entry for entry in ledger.entries if entry.group == training.axes.pp.group_desc]
        sent = sum(entry.bytes for entry in entries if entry.operation != "receive")
        predicted = plan.predict(model, layout, steps, world.rank).payload("pp")
        rows.add(what, f"{formula}, and the tied table", predicted, sent, source=NARAYANAN, case=case)
    if world.size == 1:
        rows.needs(2, what, f"{formula}, and the tied table", NARAYANAN)
