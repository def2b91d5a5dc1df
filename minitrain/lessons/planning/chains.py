"""Shared by the demos of planning: chains of layers whose costs are 1, 2 and 3, and pipelines on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import receive, send

SOME = tuple(product((1, 2, 3), repeat=8))[::79]  # 84 of 6,561, spread over all; tests take all of them


def pipeline_time(world: World, stages: Sequence[float], minibatches: int) -> float:
    """Virtual seconds until forward of all minibatches is done, on real ranks with real messages.

    Args:
        world: The ranks, one for each stage.
        stages: Seconds of a minibatch.
        minibatches: How many pass.
    """
    leaving, rank = [], world.rank
    with VirtualClock() as clock:
        for _ in range(minibatches):
            x = torch.zeros(1, device=world.device)
            if rank > 0:
                receive(x, rank - 1).wait()
            clock.work(stages[rank])
            if rank < len(stages) - 1:
                leaving.append(send(x, rank + 1))
        end = clock.now
        for handle in leaving:
            handle.wait()
    return max(gather_objects(end))
