"""The lesson of `minitrain.data_parallel.bucketed`: how many buckets there are, and one device's gradients."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.bucketed import BucketedDataParallel
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes."""
    rows, limit = Rows(f"{lesson.PAPER}, §3.2.2"), lesson.BUCKET / 2**20
    model = BucketedDataParallel(lesson.small_gpt(world), None, limit)
    sizes, ledgers = lesson.sizes(model), {lesson.BUCKET: lesson.counted(world, model)}
    for bucket in (1024, 4 * (32 + 32**2)):  # the second is exactly a bias and a matrix
        other = BucketedDataParallel(lesson.small_gpt(world), None, bucket / 2**20)
        ledgers[bucket] = lesson.counted(world, other)
    for bucket, ledger in ledgers.items():
        what, calls = "all-reduces in a step, buckets of 32 KiB and of other sizes", ledger.calls("all_reduce")
        rows.add(what, "B, packed from the last", len(costs.buckets(sizes, bucket)), calls, "1", case=f"{bucket} B")
    what, sent = "small form: payload of a step's all-reduces, gradients of S bytes", ledgers[lesson.BUCKET]
    rows.add(what, "S", costs.gradient_bytes(sizes), sent.payload("all_reduce"), "B", lesson.PAPER)
    lesson.mean_of_parts(world, rows, model, lesson.small_gpt(world, 0))
    lesson.same_weights(world, rows, {"small form": BucketedDataParallel}, limit)
    return rows.claims()
