"""The time of a step on the virtual clock: what there is to wait for in stage 3.

All layers are equal. Carrying one layer's parameters, or its gradients, takes c.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from minitrain.comm import VirtualClock, World
from minitrain.comm.comm import Comm
from minitrain.comm.timeline import Span
from minitrain.costs.communication import ring_reduce_scatter_time
from minitrain.lessons.network import Network

# The virtual machine: powers of two, so that no sum of times rounds and the clock shows the formula to the last digit.
ALPHA, BETA = 2.0**-5, 2.0**-14  # virtual seconds per message, and per byte
# Layers, and virtual seconds of one forward and backward: less than carrying takes on four ranks, and more, so that
# each maximum of the formulas is now this, now that.
SPEEDS = ((4, 0.25, 0.5), (5, 0.5, 1.0))


def measured(
    world: World, stage: Any, layers: int, forward: float, backward: float, overlap: bool = True
) -> tuple[float, list[Span]]:
    """The virtual seconds of the second step of a full form, and its spans; in the first the order is learned."""
    # A norm's parameters are a multiple of n elements, so that a ring's chunks are equal and its time exact.
    norms = [nn.RMSNorm(256 * world.size).to(world.device) for _ in range(layers)]
    module, clock = nn.Sequential(*norms), VirtualClock()
    for number, layer in enumerate(norms):
        # Before the module is wrapped: the gathering's hook goes before these, and a gradient leaves after them.
        layer.register_forward_pre_hook(lambda *_, number=number: clock.work(forward, f"{number}", "forward"))
        layer.weight.register_post_accumulate_grad_hook(
            lambda _, number=number: clock.work(backward, f"{number}", "backward")
        )
    model = stage(module, torch.optim.SGD, Comm(collectives=Network(clock, ALPHA, BETA)), lr=0.1)
    model.unshard_hooks.prefetch = overlap
    begin = 0.0
    for _ in range(2):
        begin = clock.now
        model(torch.ones(256 * world.size, device=world.device)).sum().backward()
        model.synchronize()
        model.step()
        model.zero_grad()
    spans = [each for each in clock.timeline.spans if each.start >= begin]
    return clock.now - begin, [replace(each, start=each.start - begin, end=each.end - begin) for each in spans]


def spans_of_stage3(world: World, stage: Any) -> list[Span]:
    """A step without prefetching and one with it, one below the other."""
    return [
        replace(span, lane=f"{lane}, {span.lane}")  # numbered, since rows are drawn in the order of their names
        for lane, overlap in (("1 waiting", False), ("2 prefetching", True))
        for span in measured(world, stage, *SPEEDS[0], overlap)[1]
    ]


def step_time(ranks: int, layers: int, forward: float, backward: float, prefetch: bool = True) -> float:
    """Virtual seconds of a step of stage 3 with two layers or more.

    Without prefetching a layer waits for its gathering, forward and backward. Backward, its gathering also waits for
    the reduce-scatter of the layer before, on a network that carries one at a time: L(F + B + 3c) in all.

    With prefetching only the first gathering is waited for, forward and backward. Forward, each other one is on its way
    while a layer runs: c + (L−1) · max(F, c) + F. Backward, while the last layer runs the next is gathered: max(B, c);
    while each other but the first runs, the reduce-scatter of the one before and the gathering of the next: max(B, 2c);
    while the first runs, a reduce-scatter: max(B, c); and its own reduce-scatter follows.
    """
    carry = ring_reduce_scatter_time(4 * 256 * ranks, ranks, ALPHA, BETA)  # c, of an all-gather as well
    if not prefetch:
        return layers * (forward + backward + 3 * carry)
    there = carry + (layers - 1) * max(forward, carry) + forward
    return there + carry + 2 * max(backward, carry) + (layers - 2) * max(backward, 2 * carry) + carry
