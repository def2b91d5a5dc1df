"""The lesson of `minitrain.data_parallel.diloco`: what the outer optimizer makes of the mean, its bytes and memory."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import Ledger, World
from minitrain.comm.memory import optimizer_states, storage_bytes
from minitrain.costs import local_sgd as costs
from minitrain.data_parallel.diloco import DiLoCo
from minitrain.data_parallel.local_sgd import LocalSGD
from minitrain.lessons.data_parallel import quadratics as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Steps an outer optimizer every H-th step; the table shows what it equals, bytes, and memory."""
    every, steps, size = 5, 24, 8 * lesson.ELEMENTS  # H, which does not divide T, and S
    rows = Rows("Douillard et al. 2023, algorithm 1")

    def own() -> lesson.Quadratic:
        return lesson.Quadratic(world, world.rank)

    # The mean as it is.
    found = lesson.train(DiLoCo(own(), every, partial(torch.optim.SGD, lr=1.0)), steps)
    right, most = lesson.train(LocalSGD(own(), every), steps), 2 * lesson.rounding(steps, world.size)
    lesson.close(rows, "outer SGD of rate 1: difference from local SGD", "θ − (θ − mean of θᵣ)", found, right, most)

    # The paper's outer optimizer. Momentum of 0.9 adds up what a round has rounded, at most 1/(1 − 0.9) = 10 times.
    found = lesson.train(DiLoCo(own(), every), 12 * every)
    right = lesson.alone(world, world.size, 12 * every, every, 0.7, 0.9)
    what = "12 rounds: largest difference from one device that takes all ranks' steps in turn"
    most = 10 * lesson.rounding(24 * every, world.size)
    lesson.close(rows, what, "θ ← Nesterov(θ, θ − mean of θᵣ)", found, right, most)

    model = DiLoCo(own(), every)
    with Ledger() as ledger:
        lesson.train(model, steps)
    what, predicted = f"bytes of all that is sent in {steps} steps", costs.averaged_bytes(size, steps, every)
    sent = sum(entry.bytes for entry in ledger.entries)  # no states of the inner optimizer among them
    rows.add(what, "⌊T/H⌋ S", predicted, sent, "B", "Douillard et al. 2023, §2")
    # Whatever the form holds between rounds: the outer gradients count, too, if it still has them.
    held = [*model.shared, *(shared.grad for shared in model.shared), *optimizer_states(model.outer)]
    what = "bytes held besides the module: the parameters of the last round, and the outer momentum"
    rows.add(what, "2S", costs.outer_bytes(size), storage_bytes(held))
    return rows.claims()
