"""A demo for the tests of the runner."""

from __future__ import annotations

import os
import signal

from minitrain.comm import World
from minitrain.lessons import Claim, run


def demo(world: World, elements: int = 8, fault: str = "") -> list[Claim]:
    """Counts to a number.

    Args:
        elements: How far to count, in elements.
        fault: What goes wrong on the last rank.
    """
    last = world.rank == world.size - 1
    if fault == "raise" and last:
        raise RuntimeError("this rank had enough")
    if fault == "die" and last:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault in ("raise", "die"):
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.zeros(1))
    with world.timeline.span("counting"):
        pass
    world.figure(lambda: world.timeline.draw())
    measured = elements + (fault == "wrong" and last)
    return [
        Claim("count", "n", elements, measured),
        Claim.needs_ranks(99, "crowd", "n"),
    ]


if __name__ == "__main__":
    run(demo)
