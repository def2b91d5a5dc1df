"""The lesson of `minitrain.data_parallel.local_sgd`: one step apart from data parallelism, and where many steps lead.

The losses are quadratic, so that all of it can be solved by hand (`quadratics`). What H costs a language model cannot
be claimed, only tried: chapter 02b trains one.
"""

from __future__ import annotations

from minitrain.comm import Ledger, World
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.local_sgd import LocalSGD
from minitrain.data_parallel.naive import NaiveDataParallel
from minitrain.lessons.data_parallel import quadratics as lesson
from minitrain.lessons.rows import Claim, Rows

PERIODS = (1, 2, 4, 16)  # each divides STEPS
STEPS = 64  # (1 − η/2)⁶⁴ < 10⁻¹⁹: nothing is left of the beginning


def demo(world: World) -> list[Claim]:
    """Averages parameters every H-th step; the table shows equality with H = 1, bytes, and where ranks settle."""
    every, steps = 4, 24  # H, T
    rows, most = Rows("Stich 2019, algorithm 1"), lesson.rounding(STEPS, world.size)

    def model(every: int) -> LocalSGD:
        return LocalSGD(lesson.Quadratic(world, world.rank), every)

    found = lesson.train(model(1), 20)
    right = lesson.train(NaiveDataParallel(lesson.Quadratic(world, world.rank)), 20)
    what = "H = 1: largest difference from data parallelism after 20 steps of SGD"
    lesson.close(rows, what, "mean of θ − ηgᵣ = θ − ηḡ", found, right, lesson.rounding(20, world.size))

    for each in reversed(PERIODS):  # the farthest first, since a table shows the first case
        end = lesson.train(model(each), STEPS)
        theory = lesson.settled([[rank] for rank in range(world.size)], each).to(world.device)
        what = f"parameters after {STEPS} steps: largest difference from where theory says they settle, H = 16, 4, 2, 1"
        lesson.close(rows, what, "Σ(1−qᵣ)cᵣ / Σ(1−qᵣ)", end, theory, most, f"H = {each}")

    for each in (every, every + 1, steps + 1):  # a period that steps do not divide sends nothing at the end
        with Ledger() as ledger:
            lesson.train(model(each), steps)
        predicted = costs.averaged_bytes(8 * lesson.ELEMENTS, steps, each)
        what = f"payload of all-reduces in {steps} steps, H = {every}, {every + 1} and {steps + 1}"
        rows.add(what, "⌊T/H⌋ S", predicted, ledger.payload("all_reduce"), "B", "Stich 2019, §1", case=f"H = {each}")
    return rows.claims()
