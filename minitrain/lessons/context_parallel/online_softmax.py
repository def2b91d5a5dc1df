"""The demo of `online_softmax`: softmax over all keys, in any blocks and with huge scores; and the bytes kept."""

from __future__ import annotations

from functools import partial

from minitrain.comm import World
from minitrain.context_parallel.online_softmax import attention
from minitrain.costs import context_parallel as costs
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows

DAO = 'Dao 2023, "FlashAttention-2", §3.1'
HUGE = 1e4  # exp of it overflows in any format


def demo(world: World) -> list[Claim]:
    """Computes attention block by block; compares with torch's on one device, and counts scores and bytes kept."""
    rows, seq, d = Rows(), 29, 5
    sizes = costs.Attention(2, 2, seq, d, batch=2)
    bytes_kept = costs.ring_kept(seq, 2 * 2 * d, d, 8)
    for block, causal, size in ((4, True, 1.0), (1, False, 1.0), (4, True, HUGE), (seq, False, HUGE)):
        tensors = lesson.inputs(world, sizes, size)
        with lesson.watched() as blocks:
            found = lesson.run(partial(attention, block=block, causal=causal), tensors)
        case = f"blocks of {block}, {'causal' if causal else 'no mask'}, queries to ±{size:g}"
        if size == HUGE:
            without = sum(int((~x.isfinite()).sum()) for x in found.tensors)
            what, source = "elements that are not finite, scores to ±10⁴√5", "Milakov & Gimelshein 2018, §2"
            rows.add(what, "0: weights ≤ 1", 0, without, "1", source, case=case)
        else:
            seen = lesson.visible(world, sizes, causal)
            lesson.near(rows, f"{lesson.NEAR}, scores to ±√5", found, tensors, seen, None, case)
        what = "bytes kept for backward, no scores among them"
        rows.add(what, "8 · (4abd + ab) · s", bytes_kept, found.kept, "B", DAO, case=case)
        what, most = "scores of each sequence and head at once", max(each.scores for each in blocks)
        rows.add(what, "s · block", seq * min(block, seq), most, "1", "Rabe & Staats 2021", case=case)
    return rows.claims()
