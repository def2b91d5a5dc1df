"""The lesson of `minitrain.data_parallel.naive`: what its demo claims, and how that is measured."""

from __future__ import annotations

from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import naive
from minitrain.data_parallel.full.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.data_parallel import common as lesson


def demo(world: World, layers: int = 1, hidden: int = 32) -> list[Claim]:
    """All-reduces every gradient of a small GPT; the table shows calls, bytes, and equality with one device.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    # Every rank draws other weights; rank 0's are what all start from.
    small, copy = (naive.NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden)) for _ in range(2))
    model = NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden))
    through_ring = NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), Comm(collectives=ring))
    sizes = lesson.sizes(model)
    predicted = costs.naive_ring_traffic(sizes, world.size, world.rank)
    formula = "Σ over tensors of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + 4P)"
    # One parameter in each of DDP's buckets: both then make the same calls with the same numbers.
    modules: list[nn.Module] = [lesson.WithSpare(lesson.small_gpt(world, 0, layers, hidden)) for _ in range(2)]
    reference = lesson.small_gpt(world, 0, layers, hidden)
    like_sgd, like_adamw = lesson.like_ddp(world, NaiveDataParallel, modules, None, 1e-6)
    claims = [
        *lesson.small_form(world, small, len(sizes), "P, one for each parameter", reference),
        # Each all-reduce carries the same tensor in both, so that even more ranks add in the same order.
        *as_key(lesson.like_full(world, copy, NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden)))),
        lesson.calls(world, model, costs.naive_all_reduces(sizes), "P + 1", "one for each parameter"),
        lesson.payload(world, model, costs.naive_payload(sizes), "S + 4P"),
        *lesson.traffic(world, through_ring, predicted, formula, "2(n−1)(P + 1)"),
        lesson.mean_of_parts(world, model, lesson.small_gpt(world, 0, layers, hidden)),
        like_sgd,
        *as_key(like_adamw),
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims
