"""The lesson of `minitrain.data_parallel.bucketed`: how many buckets there are, and one device's gradients."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.bucketed import BucketedDataParallel
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.rows import Claim, Rows


def demo(world: World) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes."""
    rows = Rows(f"{lesson.PAPER}, §3.2.2")
    for bucket in (lesson.BUCKET, 1024, 4 * (32 + 32**2)):  # the last is exactly a bias and a matrix
        model = BucketedDataParallel(lesson.small_gpt(world), None, bucket / 2**20)
        sizes, ledger, case = lesson.sizes(model), lesson.counted(world, model), f"{bucket} B"
        what, calls = "all-reduces in a step, buckets of 32 KiB and of other sizes", ledger.calls("all_reduce")
        rows.add(what, "B, packed from the last", len(costs.buckets(sizes, bucket)), calls, "1", case=case)
        what, sent = "small form: payload of a step's all-reduces, gradients of S bytes", ledger.payload("all_reduce")
        rows.add(what, "S", costs.gradient_bytes(sizes), sent, "B", lesson.PAPER, case=case)
    lesson.mean_of_parts(world, rows, model, lesson.small_gpt(world, 0))
    return rows.claims()
