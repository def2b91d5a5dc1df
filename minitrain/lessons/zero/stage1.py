"""The lesson of `minitrain.zero.stage1`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

import torch

from minitrain.collectives.full import ring
from minitrain.comm import Ledger, World
from minitrain.comm.comm import Comm
from minitrain.comm.memory import storage_bytes
from minitrain.costs import data_parallel
from minitrain.costs import zero as costs
from minitrain.data_parallel import DataParallel
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small, step_time
from minitrain.zero import stage1
from minitrain.zero.full.stage1 import ShardedOptimizer, Zero1


def demo(world: World, layers: int = 2, hidden: int = 34, micro_batches: int = 4) -> list[Claim]:
    """Divides a small GPT's optimizer states; the table shows bytes held and sent, and equality with torch's DDP.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        micro_batches: A, the micro-batches of each rank in a step.
    """
    claims = [
        *_small_form(world, micro_batches),
        *lesson.memory(world, Zero1, 1, layers, hidden),
        *_behind_data_parallelism(world, layers, hidden),
        lesson.traffic(world, Zero1, 1, layers, hidden, micro_batches),
        *step_time.overlapped_times(world, Zero1),
        lesson.mean_of_parts(world, Zero1, layers, hidden),
        lesson.like_ddp(world, partial(lesson.train, Zero1), layers, hidden),
    ]
    model = lesson.wrap(world, Zero1, layers, hidden)
    with world.timed("a step of forward, backward, synchronize and step"):
        lesson.step(world, model)
    return claims


def _small_form(world: World, micro_batches: int) -> list[Claim]:
    model = small.wrap(world, stage1.Zero1)
    return [
        small.sent(world, 1, model, micro_batches, small.LAYERS),
        *as_key(small.held(world, 1, "optimizer states", lesson.optimizer_states(model.optimizer), small.LAYERS)),
        small.like_full_form(world, stage1.Zero1, Zero1, units=[]),  # all layers in one line, too
    ]


def _behind_data_parallelism(world: World, layers: int, hidden: int) -> list[Claim]:
    """Claims on `ShardedOptimizer` behind chapter 02's data parallelism: states divided as well, but 3Ψ sent."""
    module = lesson.small_gpt(world, world.rank, layers, hidden)
    model = DataParallel(module, Comm(collectives=ring))
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.AdamW, Comm(collectives=ring), lr=0.01)
    with Ledger() as ledger:
        lesson.backward(world, model)
        model.synchronize()
        optimizer.step()
    sizes = [data_parallel.Sizes(p.numel(), 4, str(p.dtype)) for p in module.parameters()]
    line = [costs.Line(line.partition.elements, 4, len(line.parameters)) for line in optimizer.lines]
    reduced = data_parallel.ring_traffic(sizes, 25 * 2**20, world.size, world.rank)
    sent = reduced + costs.all_gather_traffic(line, world.size, world.rank)
    states = costs.held(1, line, world.size)["optimizer states"]
    measured = storage_bytes(lesson.optimizer_states(optimizer))
    what = "of ShardedOptimizer behind data parallelism"
    formula = "Ks + c, one line, K = 8"
    return [
        Claim(f"bytes of optimizer states {what}", formula, states, measured, "B", f"{lesson.PAPER}, §5.1"),
        Claim(
            f"bytes sent by this rank in a step {what} through the ring",
            "3(n−1)/n · Ψ, with flags and padding",
            sent.bytes,
            ledger.sent,
            "B",
            f"{lesson.PAPER}, §7.2; Patarasuk & Yuan 2009",
        ),
    ]
