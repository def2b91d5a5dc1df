"""The lesson of `minitrain.roofline.scaling`: strong and weak scaling on 1 to 8 ranks, on a virtual clock."""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Any

import torch
from torch import Tensor

from minitrain.comm import World
from minitrain.comm.control import gather_objects
from minitrain.comm.groups import new_group
from minitrain.costs import communication
from minitrain.costs import roofline as costs
from minitrain.costs import scaling as theory
from minitrain.lessons.claims import Claim
from minitrain.lessons.pictures import roofline as pictures
from minitrain.lessons.roofline.machine import VirtualMachine
from minitrain.lessons.rows import Rows
from minitrain.roofline import scaling

# Powers of two, as in the lesson of `overlap`: no time of the virtual machine rounds.
LINK = 2.0**14
SPEED = 8 * LINK
# The weight has 840 numbers, the least that 1 to 8 ranks can all divide: all chunks of a ring are equal.
ROWS, COLUMNS, TOKENS, ITEM = 28, 30, 8, 8
MICRO_BATCHES = 16  # which 3, 5, 6 and 7 ranks cannot share evenly
MOST = 8
KINDS = ("strong", "weak")
ROUNDED: dict[str, Any] = {"how": "virtual clock", "tolerance": 1e-12}  # one quotient of exact times


class Trial:
    """The same step on the first n ranks of the world, for each n; whole numbers, whose sums do not round."""

    def __init__(self, world: World):
        self.world = world
        self.counts = range(min(world.size, MOST), 0, -1)  # the table shows the first
        # All ranks make all groups, also those that they are not in.
        self.groups = {n: new_group(range(n)) for n in self.counts}
        self.weight, self.factor = self.numbers(0, ROWS, COLUMNS), self.numbers(1, ROWS, ROWS)
        self.run = cache(self._run)

    def numbers(self, seed: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-1, 2, shape, generator=generator).double().to(self.world.device)

    def micro_batches(self, count: int) -> list[tuple[Tensor, Tensor]]:
        xs, ys = self.numbers(2, count, TOKENS, ROWS), self.numbers(3, count, TOKENS, COLUMNS)
        return list(zip(xs, ys, strict=True))

    def share(self, kind: str, ranks: int) -> int:
        """Micro-batches of all ranks together."""
        return MICRO_BATCHES if kind == "strong" else ranks * MICRO_BATCHES

    def _run(self, ranks: int, count: int, link: float = LINK) -> tuple[Tensor, float]:
        """A step of the first ranks: the new weight (elsewhere the old one), and virtual seconds of the last rank."""
        weight, machine = self.weight, VirtualMachine(SPEED, link)
        if self.world.rank < ranks:
            with machine:
                given = self.micro_batches(count), self.factor, machine.all_reduce, self.groups[ranks]
                weight = scaling.step(weight, *given)
        return weight, max(gather_objects(machine.compute.now))

    def seconds(self, ranks: int, count: int, link: float = LINK) -> float:
        return self.run(ranks, count, link)[1]

    def one_device(self, count: int) -> Tensor:
        """The new weight from all tokens at once."""
        x, y = (torch.cat(each) for each in zip(*self.micro_batches(count), strict=True))
        return self.weight - self.factor @ (x.T @ (x @ self.weight - y))

    def speed_ups(self, kind: str, link: float = LINK) -> dict[int, float]:
        """As measured, by number of ranks; one device is given the same micro-batches."""
        counts = {n: self.share(kind, n) for n in self.counts}
        return {n: scaling.speed_up(self.seconds(1, m), self.seconds(n, m, link)) for n, m in counts.items()}

    def curves(self) -> list[tuple[dict[int, float], dict[int, float]]]:
        """Strong and weak scaling, each with messages and with free ones."""
        return [(self.speed_ups(kind), self.speed_ups(kind, inf)) for kind in KINDS]


EACH = 2 * costs.matrix_product(TOKENS, ROWS, COLUMNS, ITEM).flops / SPEED  # of a micro-batch
SERIAL = costs.matrix_product(ROWS, ROWS, COLUMNS, ITEM).flops / SPEED  # of the optimizer
PART = SERIAL / (SERIAL + MICRO_BATCHES * EACH)  # of one device's step


def demo(world: World) -> list[Claim]:
    """Runs a step on 1 to 8 ranks that share a batch, or bring one each; the table shows what n ranks gain."""
    trial, rows = Trial(world), Rows("derived")
    for kind in KINDS:
        for n in trial.counts:
            weight = trial.run(n, trial.share(kind, n))[0]
            # A rank that takes no part keeps the old weight.
            right = trial.one_device(trial.share(kind, n)) if world.rank < n else trial.weight
            rows.equal("elements of the new weight that differ from one device's", weight, right, case=f"{kind}, {n}")
            times(rows, trial, kind, n)
    laws(rows, trial)
    drawn = trial.curves()
    world.figure(lambda: pictures.scaling(PART, *drawn))
    return rows.claims()


def times(rows: Rows, trial: Trial, kind: str, n: int) -> None:
    """Claim the seconds of a step of n ranks, and their efficiency."""
    count, case = trial.share(kind, n), f"{kind}, {n} ranks"
    message = communication.ring_all_reduce_time(ITEM * ROWS * COLUMNS, n, 0, 1 / LINK)
    alone, together = trial.seconds(1, count), trial.seconds(n, count)
    predicted = theory.step_time(count, n, EACH, message, SERIAL)
    rows.time("time of a step, strong and weak scaling", "⌈M/n⌉f + c + o", predicted, together, case=case)
    lost = theory.uneven(count, n, EACH), message, theory.repeated(SERIAL, n)
    predicted = theory.efficiency(SERIAL + count * EACH, n, *lost)
    what, formula = "efficiency of n ranks, strong and weak", "(t₁/n) / (t₁/n + uneven + exposed + repeated)"
    rows.add(what, formula, predicted, scaling.efficiency(alone, together, n), "1", case=case, **ROUNDED)


def laws(rows: Rows, trial: Trial) -> None:
    """Claim Amdahl's and Gustafson's laws, which know neither messages nor uneven shares."""
    strong, weak = (trial.speed_ups(kind, inf) for kind in KINDS)
    for n in trial.counts:
        if MICRO_BATCHES % n == 0:
            what, formula = "speed-up of the same work, messages free", "1 / (s + (1−s)/n)"
            rows.add(what, formula, theory.amdahl(PART, n), strong[n], "1", "Amdahl 1967", case=f"{n} ranks", **ROUNDED)
        what, formula = "speed-up of work that grows with n, messages free", "s + (1−s)n"
        rows.add(what, formula, theory.gustafson(PART, n), weak[n], "1", "Gustafson 1988", case=f"{n} ranks", **ROUNDED)
