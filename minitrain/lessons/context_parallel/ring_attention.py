"""The demo of `ring_attention`: one device's attention, bytes, the work of each rank, and hidden messages."""

from __future__ import annotations

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel.ring_attention import positions, ring_attention
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows

BETA = 2.0**-20  # powers of two, so that virtual seconds are added exactly
SCORE = 10 * 2.0**-20


def demo(world: World) -> list[Claim]:
    """Passes keys and values around the ring; compares results with one device's, and counts bytes, work and time."""
    rows, n, rank, seq = Rows(), world.size, world.rank, 26  # tokens, which 3 and 4 ranks do not divide
    odd, even = (costs.Attention(2, 2, tokens, 5, batch=2) for tokens in (seq, seq // n * n))
    both = dict.fromkeys((odd, even))  # the same on ranks that divide the tokens
    cases = [(odd, {"causal": False}), *((sizes, {"causal": True}) for sizes in both)]

    def held(tokens: int) -> torch.Tensor:
        return positions(tokens, n)[rank]

    scores = "2 · (r+1) (s/n)²", costs.ring_blocks
    lesson.compare(world, rows, ring_attention, held, costs.ring_forward, scores, cases)
    # A chunk of c tokens: K and V of 4 elements, 8 bytes each; 64 c bytes, and c² scores. They take as long where
    # 10 c² = 64 c.
    for name, chunk in (("blocks slower than messages", 8), ("messages slower than blocks", 4)):
        block, message = SCORE * chunk**2, BETA * 2 * 4 * 8 * chunk
        what, formula = "virtual time of forward, no mask", "(n−1) · max(block, message) + block"
        rows.time(what, formula, costs.ring_time(n, block, message), virtual_time(world, chunk), lesson.LIU, case=name)
    return rows.claims()


def virtual_time(world: World, chunk: int) -> float:
    """The virtual seconds of forward without a mask, until the last rank is done, with `chunk` tokens on each rank."""
    sizes = costs.Attention(1, 1, chunk * world.size, 4)
    q, k, v, _ = (x[:, :, positions(sizes.seq, world.size)[world.rank]] for x in lesson.inputs(world, sizes))
    with torch.no_grad(), VirtualClock(beta=BETA) as clock, lesson.watched(clock, SCORE):
        ring_attention(q, k, v, sizes.seq, causal=False)
    return max(gather_objects(clock.now))
