"""Scaling: n ranks share a batch (strong scaling), or bring one each (weak scaling); what do they gain over one device?

**Idea.** n devices would be n times as fast as one, if they divided all work evenly and never waited. In a step of data
parallelism they lose time in three places: some ranks have a micro-batch more than others; the sum of the gradients
hides behind nothing; and the optimizer's work is not divided. If n ranks share one batch, the part that they divide
shrinks, and these losses do not. If the batch grows with n, they weigh as little as before.

**Source.** Amdahl 1967, "Validity of the single processor approach"; Gustafson 1988, "Reevaluating Amdahl's law".
**Sent.** 2(n−1)/n of the gradient's bytes.
**Cost.** ⌈M/n⌉ micro-batches, the all-reduce, and the optimizer.
Also called parallel efficiency, scaling factor; strong and weak scaling: fixed-size and scaled speed-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.comm.messages import Group, all_reduce, rank_and_size


def step(
    weight: Tensor,
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    factor: Tensor,
    reduce: Callable[[Tensor, Group], Any] = all_reduce,
    group: Group = None,
) -> Tensor:
    """The weight (D, E) after a step on the loss ½|xW − y|² with a preconditioned gradient; of pairs (T, D), (T, E)."""
    rank, ranks = rank_and_size(group)
    gradient = torch.zeros_like(weight)  # (D, E)
    # Dealt like cards: where n does not divide them, some ranks have one more, and all others wait for these.
    for x, y in micro_batches[rank::ranks]:
        gradient += x.T @ (x @ weight - y)
    # Nothing is left to compute until the sum has arrived, so all of this message is exposed.
    total = reduce(gradient, group).wait()
    # The same product on every rank, however many there are: the part that n devices do not divide.
    return weight - factor @ total


def speed_up(alone: float, together: float) -> float:
    """How many times as fast n devices are as one: its seconds over theirs, for the same work."""
    return alone / together


def efficiency(alone: float, together: float, ranks: int) -> float:
    """What a device is worth among n: total speed = one device's speed · n · efficiency."""
    return speed_up(alone, together) / ranks


if __name__ == "__main__":
    from minitrain.lessons import run

    run(__spec__)
