"""The lesson of `minitrain.composition.step`: the same training in every layout, compared with plain PyTorch.

**The bound for AdamW in float64.** Adam divides by √v + ε, so it enlarges a difference δ of gradients where they are
small: a step changes by at most (1 + 1.17) · η · δ/ε. The first term is the change of m, the second that of √v, with
|m|/√v ≤ √((1−β₁)²/((1−β₂)(1−β₁²/β₂))) = 1.17 for β = 0.9, 0.95. With η = 3 · 10⁻⁴ in two steps and ε = 10⁻⁸ that is
1.3 · 10⁵ · δ: the weights agree to 10⁻⁹ if the gradients do to 7 · 10⁻¹⁵. Rounding errors add up like √K rather than K
(Higham & Mary 2019), and 6 √K · u, for K terms on the way from a token to a gradient, is 3 · 10⁻¹⁴ of gradients of 0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from minitrain.comm import World
from minitrain.composition.settings import Layout, Settings, fitting
from minitrain.lessons.composition import common as lesson
from minitrain.lessons.rows import Claim, Rows, most

STEPS, BOUND = 2, 1e-9


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
