"""The lesson of `minitrain.data_parallel.bucketed`: how many buckets there are, and one device's gradients."""

from __future__ import annotations

from torch import nn

from minitrain.comm import World
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel.bucketed import BucketedDataParallel, pack
from minitrain.data_parallel.full import bucketed as full
from minitrain.lessons.claims import Claim
from minitrain.lessons.data_parallel import common as lesson
from minitrain.lessons.rows import Rows


def demo(world: World) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes."""
    layers, hidden = 2, 32

    def gpt(seed: int = world.rank) -> nn.Module:
        """Every rank draws other weights; rank 0's are what all start from."""
        return lesson.small_gpt(world, seed, layers, hidden)

    rows, limit = Rows(f"{lesson.PAPER}, §3.2.2"), lesson.BUCKET / 2**20
    model = BucketedDataParallel(gpt(), None, limit)
    ledger, sizes = lesson.counted(world, model), lesson.sizes(model)
    for bucket in (lesson.BUCKET, 1024, 8192):
        sent = (
            ledger
            if bucket == lesson.BUCKET
            else lesson.counted(world, BucketedDataParallel(gpt(), None, bucket / 2**20))
        )
        what, predicted = (
            "all-reduces in a step, buckets of 32 KiB and of other sizes",
            len(costs.buckets(sizes, bucket)),
        )
        rows.add(what, "B, packed from the last", predicted, sent.calls("all_reduce"), "1", case=f"{bucket} B")

    what = "small form: payload of a step's all-reduces, gradients of S bytes"
    rows.add(what, "S", costs.gradient_bytes(sizes), ledger.payload("all_reduce"), "B", lesson.PAPER)
    lesson.mean_of_parts(world, rows, model, gpt(0))

    lesson.same_weights(world, rows, BucketedDataParallel, full.BucketedDataParallel, gpt, limit)

    # Five layers fill a bucket each, and a small one remains, which has a bucket of its own.
    stack, limit = nn.Sequential(nn.Linear(4, 1, bias=False), *(nn.Linear(16, 16, bias=False) for _ in range(5))), 1024
    most = costs.most_buckets(sum(parameter.nbytes for parameter in stack.parameters()), limit)
    what = "most buckets that S bytes make, parameters that fill one each and one more"
    rows.add(what, "⌈S/limit⌉", most, len(pack(stack, limit / 2**20)), "1")
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return rows.claims()
