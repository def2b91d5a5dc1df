"""The lesson of `minitrain.data_parallel.bucketed`: what its demo claims, and how that is measured."""

from __future__ import annotations

from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import bucketed
from minitrain.data_parallel.full import bucketed as full
from minitrain.data_parallel.full.bucketed import BucketedDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel import common as lesson


def demo(world: World, layers: int = 2, hidden: int = 32) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """

    limit, pair = lesson.BUCKET / 2**20, lesson.neighbours(world)

    def gpt(seed: int) -> nn.Module:
        return lesson.small_gpt(world, seed, layers, hidden)

    # Every rank draws other weights; rank 0's are what all start from.
    small = bucketed.BucketedDataParallel(gpt(world.rank), None, limit)
    model = BucketedDataParallel(gpt(world.rank), None, limit)
    through_ring = BucketedDataParallel(gpt(world.rank), Comm(collectives=ring), limit)
    two_kinds = BucketedDataParallel(lesson.TwoKinds().to(world.device), None, limit)
    ledger, sizes = lesson.counted(world, small), lesson.sizes(model)
    calls = {"small form, 32 KiB": (ledger, sizes, lesson.BUCKET)}
    for kilobytes in (1, 8, 32, 128, 25600):
        for name, module in (("full form", gpt(world.rank)), ("two dtypes", lesson.TwoKinds().to(world.device))):
            packed = BucketedDataParallel(module, None, kilobytes / 1024)
            sent = lesson.counted(world, packed)
            calls[f"{name}, {kilobytes} KiB"] = sent, lesson.sizes(packed), 1024 * kilobytes
    formula, source = "B, packed from the last", f"{lesson.PAPER}, §3.2.2"
    cases = {
        name: Claim("", formula, len(costs.buckets(sizes, size)), sent.calls("all_reduce"), "1", source)
        for name, (sent, sizes, size) in calls.items()
    }
    # On two ranks a sum is the same in either order; with more, the full form's flags move elements to other chunks.
    alike = lesson.like_full(
        world,
        bucketed.BucketedDataParallel(gpt(world.rank), pair, limit),
        BucketedDataParallel(gpt(world.rank), pair, limit),
    )
    same = "weights that differ after 5 steps: small form from full form, on two ranks"
    claims = [
        fold("all-reduces in a step, buckets of 32 KiB and of other sizes", cases, key=True),
        lesson.small_payload({"GPT": (ledger, small)}),
        lesson.mean_of_parts(world, {"small form": small, "full form": model}, gpt(0)),
        fold(same, {"five steps of SGD": alike}, key=True),
        most_buckets(),
        *lesson.bucket_volume(world, {"GPT": model, "two dtypes": two_kinds}, through_ring),
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims


def most_buckets() -> Claim:
    """The claim that S bytes make at most ⌈S/limit⌉ buckets, and so many where each parameter fills one.

    Here five layers fill a bucket each, and a small one remains, which has a bucket of its own.
    """
    limit = 1024  # bytes
    stack = nn.Sequential(nn.Linear(4, 1, bias=False), *(nn.Linear(16, 16, bias=False) for _ in range(5)))
    most = costs.most_buckets(sum(parameter.nbytes for parameter in stack.parameters()), limit)
    cases = {
        "small form": len(bucketed.pack(stack, limit / 2**20)),
        "full form": len(full.pack(dict(stack.named_parameters()), limit / 2**20)),
    }
    source = f"{lesson.PAPER}, §3.2.2"
    packed = len(costs.buckets(lesson.sizes(stack), limit))
    claims = {
        f"{name}, {by}": Claim("", "⌈S/limit⌉", predicted, found, "1", source)
        for by, predicted in (("⌈S/limit⌉", most), ("packed", packed))
        for name, found in cases.items()
    }
    return fold("most buckets that S bytes make, parameters that fill one each and one more", claims, key=True)
