"""The lesson of `minitrain.planning.halving`: trials, their steps, and trials of cuts on real ranks."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.planning.chains import pipeline_time
from minitrain.lessons.planning.partition import stage_times
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.halving import successive_halving

LAYERS = (3, 1, 4, 1, 5, 2, 2, 1)  # virtual seconds


def demo(world: World) -> list[Claim]:
    """Chooses by short trials; the table shows trials, their steps, and a cut that is chosen by virtual time."""
    rows = Rows("Jamieson & Talwalkar 2016, figure 1")
    for n, steps, eta in ((16, 100, 4), (7, 50, 2), (10, 45, 3)):
        asked: list[int] = []
        # A trial only notes its steps; `append` returns None, so all candidates are alike.
        successive_halving(range(n), lambda _, count, asked=asked: asked.append(count) or 0.0, steps, eta)
        expected, case = costs.halving_rounds(n, steps, eta), f"n = {n}, budget {steps}, η = {eta}"
        count, total = sum(each for each, _ in expected), sum(each * length for each, length in expected)
        what = "trials, for three numbers of candidates and of steps"
        rows.add(what, "Σ ⌈n/ηᵏ⌉", count, len(asked), "1", "Li et al. 2018, §3", case=case)
        rows.add("steps of all trials together", "Σ ⌈n/ηᵏ⌉ ⌊B/(⌈n/ηᵏ⌉ ⌈log_η n⌉)⌋", total, sum(asked), "1", case=case)

    # Every third cut of 8 layers over all ranks. In the first round each has two steps at least: a single minibatch
    # takes Σt, whatever the cut.
    cuts = list(costs.compositions(len(LAYERS), world.size))[::3]
    best = min(max(stage_times(LAYERS, cut)) for cut in cuts)
    chosen, _ = successive_halving(
        cuts,
        lambda cut, steps: pipeline_time(world, [(each, 1) for each in stage_times(LAYERS, cut)], steps) / steps,
        2 * len(cuts) * max(1, len(cuts).bit_length()),
    )
    what = "slowest stage of the cut that is chosen by virtual time, over all ranks"
    rows.add(what, "min over all", best, max(stage_times(LAYERS, chosen)), "s", "derived", how="virtual clock")
    return rows.claims()
