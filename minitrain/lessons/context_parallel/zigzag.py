"""The demo of `zigzag`: one device's attention, bytes, equal work, and the time that contiguous chunks take longer."""

from __future__ import annotations

from typing import Any

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel.ring_attention import positions, ring_attention
from minitrain.context_parallel.zigzag import held, zigzag_attention
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.pictures import context_parallel as pictures
from minitrain.lessons.rows import Claim, Rows

Blocks = list[list[lesson.Block]]  # of each rank


def demo(world: World) -> list[Claim]:
    """Gives each rank an early and a late chunk; compares with one device, and counts work and time on all ranks."""
    rows, n, rank, seq = Rows(), world.size, world.rank, 27  # tokens, which no even number of chunks divides
    odd, even = (costs.Attention(2, 2, tokens, 5, batch=2) for tokens in (seq, seq // (2 * n) * 2 * n))

    def own(tokens: int) -> torch.Tensor:
        return torch.cat(held(tokens, n)[rank])

    scores = "2 · (2n+1) (s/2n)²", costs.zigzag_blocks
    cases: list[tuple[costs.Attention, dict[str, Any]]] = [(odd, {}), (even, {})]
    lesson.compare(world, rows, zigzag_attention, own, costs.zigzag_forward, scores, cases)
    drawn, ends = timed(world)
    world.figure(lambda: pictures.zigzag(drawn))
    ratio = costs.ring_causal_time(n) / costs.zigzag_causal_time(n)
    what = "time of contiguous chunks over that of zigzag"
    rows.add(what, "(2n−1)/n", ratio, ends["contiguous"] / ends["zigzag"], "1", "derived", how="virtual clock")
    return rows.claims()


def timed(world: World) -> tuple[dict[str, Blocks], dict[str, float]]:
    """The blocks of causal attention in both forms, with their times, and when the last is done; messages are free.

    The unit is the time of a block of (s/n)² scores. Blocks on the diagonal take half their time, see `watched`.
    """
    n, seq = world.size, 4 * world.size
    sizes, drawn, ends = costs.Attention(1, 1, seq, 4), {}, {}
    forms = (
        ("contiguous", ring_attention, positions(seq, n)[world.rank]),
        ("zigzag", zigzag_attention, torch.cat(held(seq, n)[world.rank])),
    )
    for name, attend, at in forms:
        q, k, v, _ = (x[:, :, at.to(x.device)] for x in lesson.inputs(world, sizes))
        with torch.no_grad(), VirtualClock() as clock, lesson.watched(clock, 1 / 16) as blocks:
            attend(q, k, v, seq)
        drawn[name] = gather_objects(blocks)
        ends[name] = max(gather_objects(clock.now))
    return drawn, ends
