"""The lesson of `minitrain.data_parallel.bucketed`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.comm.comm import AnyComm, Comm
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import bucketed
from minitrain.data_parallel.full.bucketed import BucketedDataParallel
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.data_parallel import common as lesson


def demo(world: World, layers: int = 2, hidden: int = 32) -> list[Claim]:
    """Sends a small GPT's gradients in buckets; the table shows how many there are for several bucket sizes.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """

    def wrap(bucket_megabytes: float, comm: AnyComm = None) -> BucketedDataParallel:
        # Every rank draws other weights; rank 0's are what all start from.
        module = lesson.small_gpt(world, world.rank, layers, hidden)
        return BucketedDataParallel(module, comm, bucket_megabytes)

    model = wrap(lesson.BUCKET / 2**20)
    sizes = lesson.sizes(model)
    limit, pair = lesson.BUCKET / 2**20, lesson.neighbours(world)
    small = bucketed.BucketedDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), None, limit)
    predicted, reference = len(costs.buckets(sizes, lesson.BUCKET)), lesson.small_gpt(world, 0, layers, hidden)
    claims = lesson.small_form(world, small, predicted, "B, buckets of 32 KiB packed from the last", reference)
    # On two ranks a sum is the same in either order; with more, the full form's flags move elements to other chunks.
    small = bucketed.BucketedDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), pair, limit)
    full = BucketedDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), pair, limit)
    claims += as_key(lesson.like_full(world, small, full, ", on two ranks"))
    for kilobytes in (1, 8, 32, 128, 25600):
        predicted = len(costs.buckets(sizes, 1024 * kilobytes))
        packing = f"buckets of {kilobytes:,} KiB"
        claims.append(lesson.calls(world, wrap(kilobytes / 1024), predicted, "B, packed from the last", packing))
    size = sum(parameter.nbytes for parameter in model.parameters())
    most = costs.most_buckets(size, lesson.BUCKET)
    source = f"{lesson.PAPER}, §3.2.2"
    what, formula = "buckets of 32 KiB", "⌈S / 32 KiB⌉"
    claims.append(Claim(what, formula, most, len(model.buckets), "1", source, relation="<=", key=True))
    claims += lesson.bucket_volume(world, model, wrap(lesson.BUCKET / 2**20, Comm(collectives=ring)))
    claims.append(lesson.mean_of_parts(world, model, lesson.small_gpt(world, 0, layers, hidden)))
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims
