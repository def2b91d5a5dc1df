"""The lesson of `minitrain.zero.stage2`: what its demo claims, and how that is measured."""

from __future__ import annotations

from functools import partial

from minitrain.collectives.full import ring
from minitrain.comm import World
from minitrain.costs import zero as costs
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.zero import common as lesson
from minitrain.lessons.zero import small
from minitrain.zero import stage2
from minitrain.zero.full.sharded import Sharded
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Undrained, Zero2


def demo(world: World, layers: int = 2, hidden: int = 34, micro_batches: int = 4) -> list[Claim]:
    """Divides gradients while backward runs; the table shows bytes held and sent, peaks, and equality with torch's DDP.

    Args:
        layers: Blocks of the GPT.
        hidden: Its width.
        micro_batches: A, the micro-batches of each rank in a step.
    """
    claims = [
        *_small_form(world, micro_batches),
        *lesson.memory(world, Zero2, 2, layers, hidden),
        *_peaks(world),
        lesson.traffic(world, Zero2, 2, layers, hidden, micro_batches),
        *lesson.clipping(world, Zero2),
        lesson.mean_of_parts(world, Zero2, layers, hidden),
        lesson.like_ddp(world, partial(lesson.train, Zero2), layers, hidden),
    ]
    model = lesson.wrap(world, Zero2, layers, hidden)
    with world.timed("a step of forward, backward, synchronize and step"):
        lesson.step(world, model)
    return claims


def _small_form(world: World, micro_batches: int) -> list[Claim]:
    model = small.wrap(world, stage2.Zero2)
    sent = small.sent(world, 2, model, micro_batches)
    small.step(world, model)
    gradients = [each.grad for each in (*model.module.parameters(), *model.shards)]
    return [
        sent,
        *as_key(small.held(world, 2, "gradients", gradients)),
        small.held(world, 2, "optimizer states", lesson.optimizer_states(model.optimizer)),
        small.like_full_form(world, stage2.Zero2, Zero2),
    ]


def _peaks(world: World, layers: int = 8, hidden: int = 128) -> list[Claim]:
    """Claims on the most gradients at once: in stage 1, with draining, and without.

    Of the ring's receive buffers, each as large as a shard, one set stays from the step before. Without draining a
    second set may be in use while the peak comes: how much of it depends on which rank is ahead.
    """
    claims = []
    source = f"{lesson.PAPER}, §5.2; Zhao et al. 2023, §3.4"
    ways: tuple[tuple[str, type[Sharded], str], ...] = (
        ("stage 1", Zero1, "LG + G"),
        ("stage 2", Zero2, "Ls + 3G"),
        ("stage 2 without draining", Undrained, "Ls + LG + G, and at most min(n−1, 3)s of buffers"),
    )
    for name, stage, formula in ways:
        peak, gradient, small = lesson.most_gradients(world, stage, layers, hidden)
        each = [costs.Line(hidden * hidden, 4)] * layers
        predicted = costs.held(1 if stage is Zero1 else 2, each, world.size, 0, 0)["gradients"]
        if stage is Zero1:
            predicted += gradient
        else:
            predicted += costs.gradient_peak(each, gradient, world.size, drain=stage is Zero2)
        if stage is Undrained:
            small += min(world.size - 1, ring.AHEAD) * 4 * costs.shard_elements(hidden * hidden, world.size)
        what = f"most bytes of gradients at once, {layers} layers of G bytes in shards of s, {name}"
        claims.append(Claim(what, formula, predicted, peak, "B", source, absolute=small, key=stage is Zero2))
    return claims
