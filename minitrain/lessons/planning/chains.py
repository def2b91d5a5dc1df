"""Shared by the demos of planning: chains of layers whose costs are 1, 2 and 3, and pipelines on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import receive, send

SOME = tuple(product((1, 2, 3), repeat=8))[::79]  # 84 of 6,561, spread over all; tests take all of them


def pipeline_time(world: World, stages: Sequence[tuple[float, int]], minibatches: int, messages=()) -> float:
    """Virtual seconds until forward of all minibatches is done, on real ranks with real messages.

    Args:
        world: The ranks; as many as there are replicas take part.
        stages: Seconds of a minibatch and replicas of each. Replicas take turns.
        minibatches: How many pass.
        messages: Seconds of the message after each stage; without them, none.
    """
    stage_of = [stage for stage, (_, replicas) in enumerate(stages) for _ in range(replicas)]

    def rank_of(stage: int, minibatch: int) -> int:
        return stage_of.index(stage) + minibatch % stages[stage][1]

    def beta(source: int, to: int) -> tuple[float, float]:
        return (messages[stage_of[source]] if messages else 0.0), 0.0

    leaving = []
    with VirtualClock(links=beta) as clock:
        for stage in stage_of[world.rank : world.rank + 1]:  # none on a rank that takes no part
            for minibatch in range(minibatches):
                if rank_of(stage, minibatch) != world.rank:
                    continue  # another replica's turn
                x = torch.zeros(1, device=world.device)
                if stage > 0:
                    receive(x, rank_of(stage - 1, minibatch)).wait()
                clock.work(stages[stage][0])
                if stage < len(stages) - 1:
                    leaving.append(send(x, rank_of(stage + 1, minibatch)))
        end = clock.now
        for handle in leaving:
            handle.wait()
    return max(gather_objects(end))
