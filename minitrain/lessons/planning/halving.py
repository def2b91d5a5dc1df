"""The lesson of `minitrain.planning.halving`: trials, and their steps."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import planning as costs
from minitrain.lessons.rows import Claim, Rows
from minitrain.planning.halving import successive_halving


def demo(world: World) -> list[Claim]:
    """Chooses by short trials; the table shows how many there are, and their steps."""
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

    return rows.claims()
