"""The demo of `online_softmax`: softmax over all keys, in any blocks and with huge scores; and the bytes kept."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.comm import World
from minitrain.context_parallel.online_softmax import add_block, attention, finish, nothing_yet
from minitrain.costs import context_parallel as costs
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.context_parallel import common as lesson

HUGE = 1e4  # exp of it overflows in any format


def in_another_order(world: World, sizes: lesson.Sizes, block: int) -> Claim:
    """The claim that the blocks may come in any order: here the last one first."""
    q, k, v, _ = lesson.inputs(world, sizes)
    at, outputs = torch.arange(sizes.seq, device=q.device), []
    blocks = list(zip(k.split(block, -2), v.split(block, -2), at.split(block), strict=True))
    for order in (blocks, reversed(blocks)):
        running = nothing_yet(q)
        for keys, values, key_at in order:
            running = add_block(running, q, (keys, values), at, key_at, False)
        outputs.append(finish(running)[0])
    claim = lesson.near(float((outputs[0] - outputs[1]).abs().max()), sizes, len(blocks))
    return fold("the last block of keys first: distance of the output", {"no mask": claim})


def demo(world: World, seq: int = 29, heads: int = 2) -> list[Claim]:
    """Computes attention block by block; compares with torch's on one device, and counts scores and bytes kept.

    Args:
        seq: Tokens of the sequence.
        heads: Attention heads, of 5 elements.
    """
    sizes = lesson.Sizes(2, heads, seq, 5)
    cases, finite, kept, largest = {}, {}, {}, {}
    for block in (1, 4, seq):
        for causal in (True, False):
            for size in (1.0, HUGE):
                tensors = lesson.inputs(world, sizes, size)
                with lesson.watched() as blocks:
                    found = lesson.run(partial(attention, block=block, causal=causal), tensors)
                case = f"blocks of {block}, {'causal' if causal else 'no mask'}, queries to ±{size:g}"
                distance = lesson.off(found.tensors, tensors, causal, sizes)
                cases[case] = lesson.near(distance, sizes, -(-seq // block), size)
                if size == HUGE:
                    without = sum(int((~x.isfinite()).sum()) for x in found.tensors)
                    finite[case] = Claim("", "0: weights ≤ 1", 0, without, "1", "Milakov & Gimelshein 2018, §2")
                bytes_kept = costs.ring_kept(seq, sizes.width, sizes.d, 8)
                kept[case] = Claim("", "8 · (4abd + ab) · s", bytes_kept, found.kept, "B", lesson.DAO)
                most = max(each.scores for each in blocks)
                largest[case] = Claim("", "s · block", seq * min(block, seq), most, "1", "Rabe & Staats 2021")
    what = "output, dQ, dK, dV: distance from one device's"
    return [
        fold(f"{what}, scores to ±√5", {c: x for c, x in cases.items() if c.endswith("±1")}, key=True),
        fold(f"{what}, scores to ±10⁴√5", {c: x for c, x in cases.items() if not c.endswith("±1")}),
        fold("elements that are not finite, scores to ±10⁴√5", finite, key=True),
        in_another_order(world, sizes, 4),
        fold("bytes kept for backward, no scores among them", kept, key=True),
        fold("scores of each sequence and head at once", largest, key=True),
    ]
