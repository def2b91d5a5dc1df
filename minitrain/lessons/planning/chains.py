"""Shared by the demos of planning: chains of layers whose costs are 1, 2 and 3, and pipelines on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.comm.messages import Handle, receive, send

CHAINS = tuple(product((1, 2, 3), repeat=8))  # 6,561
SOME = CHAINS[::79]  # 84 of them, spread over all; a test takes all of them


def pipeline_time(
    world: World, stages: Sequence[tuple[float, int]], minibatches: int, messages: Sequence[float] = ()
) -> float:
    """Virtual seconds until forward of all minibatches is done, on real ranks with real messages.

    Args:
        world: The ranks; as many as there are replicas take part.
        stages: Seconds of a minibatch and replicas of each. Replicas take turns.
        minibatches: How many pass.
        messages: Seconds of the message after each stage; without them, none.
    """
    first = [sum(replicas for _, replicas in stages[:number]) for number in range(len(stages) + 1)]

    def rank_of(stage: int, minibatch: int) -> int:
        return first[stage] + minibatch % stages[stage][1]

    def beta(source: int, to: int) -> tuple[float, float]:
        stage = max(number for number in range(len(stages)) if first[number] <= source)
        return (messages[stage] if messages else 0.0), 0.0

    mine = [stage for stage in range(len(stages)) if first[stage] <= world.rank < first[stage + 1]]
    leaving: list[Handle] = []
    with VirtualClock(links=beta) as clock:
        for stage in mine:
            for minibatch in range(world.rank - first[stage], minibatches, stages[stage][1]):
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
