"""The lesson of `minitrain.data_parallel.naive`: what its demo claims, and how that is measured."""

from __future__ import annotations

from torch import nn

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.comm.comm import Comm
from minitrain.costs import data_parallel as costs
from minitrain.data_parallel import naive
from minitrain.data_parallel.full.naive import NaiveDataParallel
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.data_parallel import common as lesson


def demo(world: World, layers: int = 1, hidden: int = 32) -> list[Claim]:
    """All-reduces every gradient of a small GPT; the table shows calls, bytes, and equality with one device.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
    """
    # Every rank draws other weights; rank 0's are what all start from.
    small, copy = (naive.NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden)) for _ in range(2))
    model, other = (NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden)) for _ in range(2))
    through_ring = NaiveDataParallel(lesson.small_gpt(world, world.rank, layers, hidden), Comm(collectives=ring))
    kinds = naive.NaiveDataParallel(lesson.TwoKinds().to(world.device))
    sizes = lesson.sizes(model)
    # One parameter in each of DDP's buckets: both then make the same calls with the same numbers.
    modules: list[nn.Module] = [lesson.WithSpare(lesson.small_gpt(world, 0, layers, hidden)) for _ in range(2)]
    # Each all-reduce carries the same tensor in both forms, so that even more ranks add in the same order.
    alike = {"small form beside the full form": lesson.like_full(world, copy, other)}
    alike |= lesson.like_ddp(world, NaiveDataParallel, modules, None, 1e-6)
    ledgers = [lesson.counted(world, each) for each in (small, model)]
    calls = [ledger.calls("all_reduce") for ledger in ledgers]
    flags = costs.Sizes(len(sizes), 4)
    payload = lesson.payload(ledgers[1], [flags, *sizes], costs.naive_payload(sizes), "S + 4P")
    travels = costs.naive_ring_traffic(sizes, world.size, world.rank)
    what, formula = "small form: all-reduces in a step", "P, one for each parameter"
    same = "weights that differ after 5 steps: small form from full form, full form from torch's DDP"
    everything = "all-reduces in a step, with the flags of all"
    travelling = "Σ over tensors of 2S − cᵣ − cᵣ₊₁ ≈ 2(n−1)/n · (S + 4P), in 2(n−1)(P + 1) messages"
    claims = [
        Claim(what, formula, len(sizes), calls[0], "1", f"{lesson.PAPER}, §3.2.1", key=True),
        lesson.small_payload({"GPT": (ledgers[0], small), "two dtypes": (lesson.counted(world, kinds), kinds)}),
        lesson.mean_of_parts(
            world, {"small form": small, "full form": model}, lesson.small_gpt(world, 0, layers, hidden)
        ),
        fold(same, alike, key=True),
        Claim(everything, "P + 1", costs.naive_all_reduces(sizes), calls[1], "1", "derived"),
        fold("payload of a step's all-reduces, P parameters of S bytes, in all and one by one", payload),
        lesson.traffic(world, through_ring, travels, travelling),
    ]
    with world.timed("a step of forward, backward and synchronize"):
        lesson.step(world, model)
    return claims
