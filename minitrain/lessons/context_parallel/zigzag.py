"""The demo of `zigzag`: one device's attention, bytes, equal work, and the time that contiguous chunks take longer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from minitrain.comm import VirtualClock, World
from minitrain.comm.control import gather_objects
from minitrain.context_parallel.ring_attention import positions, ring_attention
from minitrain.context_parallel.zigzag import held, zigzag_attention
from minitrain.costs import context_parallel as costs
from minitrain.costs.communication import chunk_size
from minitrain.lessons import Claim
from minitrain.lessons.claims import fold
from minitrain.lessons.context_parallel import common as lesson
from minitrain.lessons.context_parallel import full_form
from minitrain.lessons.context_parallel.ring_attention import LIU, like_one_device, sent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LLAMA = 'Grattafiori et al. 2024, "The Llama 3 Herd of Models", §3.3.2'
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#0072B2", "#D55E00", "#999999")
Blocks = list[list[lesson.Block]]  # of each rank


def work(world: World, sizes: lesson.Sizes) -> Claim:
    """The claim on the scores that this rank computes, forward and backward, where the sequence divides and not."""
    n, rank = world.size, world.rank
    counted = {}
    for each in (sizes, sizes._replace(seq=4 * n)):
        with lesson.watched() as blocks:
            at = torch.cat(held(each.seq, n)[rank])
            lesson.run(partial(zigzag_attention, seq=each.seq), lesson.inputs(world, each), at)
        half = len(blocks) // 2  # backward computes the same blocks again
        for way, its in {"forward": blocks[:half], "backward": blocks[half:]}.items():
            predicted, measured = costs.zigzag_blocks(each.seq, n, rank), sum(block.scores for block in its)
            case = f"{each.seq} tokens, {way}"
            counted[case] = Claim("", "(2n+1) (s/2n)²", predicted, measured, "1", LLAMA)
    return fold("scores that this rank computes", counted, key=True)


def timed(world: World) -> tuple[list[Claim], dict[str, Blocks]]:
    """Claims on the virtual time of causal attention in both forms, with free messages; all blocks with their times.

    The unit is the time of a block of (s/n)² scores. Blocks on the diagonal take half their time, see `watched`.
    """
    n, seq = world.size, 4 * world.size
    sizes, claims, drawn, ends, areas = lesson.Sizes(1, 1, seq, 4), [], {}, {}, {}
    forms = (
        ("contiguous", ring_attention, positions(seq, n)[world.rank]),
        ("zigzag", zigzag_attention, torch.cat(held(seq, n)[world.rank])),
    )
    for name, attend, at in forms:
        q, k, v, _ = (x[:, :, at.to(x.device)] for x in lesson.inputs(world, sizes))
        with torch.no_grad(), VirtualClock() as clock, lesson.watched(clock, 1 / 16) as blocks:
            attend(q, k, v, seq)
        drawn[name] = gather_objects(blocks)
        ends[name] = max(gather_objects(clock.now))
        busy = [sum(block.end - block.start for block in its) for its in drawn[name]]
        areas[name] = busy[world.rank] / sum(busy)
    how = "virtual clock"
    area = costs.ring_area_share(n, world.rank)
    ratio = costs.ring_causal_time(n) / costs.zigzag_causal_time(n)
    claims = [
        Claim("time of contiguous chunks over that of zigzag", "(2n−1)/n", ratio, ends["contiguous"] / ends["zigzag"],
              "1", "derived", how, key=True),
        Claim("zigzag: virtual time of causal attention, in blocks of (s/n)²", "n/2", costs.zigzag_causal_time(n),
              ends["zigzag"], "1", "derived", how),
        Claim("contiguous: this rank's share of the work, as area", "(2r+1)/n²", area, areas["contiguous"], "1",
              "derived", how, tolerance=1e-12),
        Claim("zigzag: this rank's share of the work, as area", "1/n", 1 / n, areas["zigzag"], "1", LLAMA, how,
              tolerance=1e-12, key=True),
    ]  # fmt: skip
    return claims, drawn


def picture(forms: dict[str, Blocks]) -> Figure:
    """Above, which rank computes which block of scores, numbered in its rank's order; below, when."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ranks = len(next(iter(forms.values())))
    end = max(block.end for blocks in forms.values() for its in blocks for block in its)
    figure = Figure(figsize=(9, 5.0 + 0.25 * ranks), layout="constrained")
    grid = figure.subplots(2, len(forms), squeeze=False, height_ratios=[4, 0.8 + 0.28 * ranks])
    for (name, blocks), matrix, times in zip(forms.items(), *grid, strict=True):
        seq = 1 + max(block.queries[1] for its in blocks for block in its)
        for rank, its in enumerate(blocks):
            colour = COLOURS[rank % len(COLOURS)]
            for number, block in enumerate(its, 1):
                (top, bottom), (left, right) = block.queries, block.keys
                size = right + 1 - left, bottom + 1 - top
                matrix.add_patch(Rectangle((left, top), *size, facecolor=colour, edgecolor="white"))
                middle = left + size[0] / 2, top + size[1] / 2
                matrix.text(*middle, str(number), ha="center", va="center", fontsize=7)
                times.barh(rank, block.end - block.start, left=block.start, color=colour, edgecolor="white")
                when = (block.start + block.end) / 2
                times.text(when, rank, str(number), ha="center", va="center", fontsize=7)
        matrix.set(xlim=(0, seq), ylim=(seq, 0), aspect="equal", title=name, xlabel="key", ylabel="query")
        matrix.set(xticks=range(0, seq + 1, 4), yticks=range(0, seq + 1, 4))  # borders of the contiguous chunks
        matrix.plot([0, seq], [0, seq], color="black", lw=0.8, ls="--")
        times.set(xlim=(0, end * 1.01), ylim=(ranks - 0.4, -0.6), xlabel="time, in blocks of (s/n)² scores")
        times.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        times.spines[["top", "right"]].set_visible(False)
    return figure


def demo(world: World, seq: int = 27, heads: int = 2) -> list[Claim]:
    """Gives each rank an early and a late chunk; compares with one device, and counts work and time on all ranks.

    Args:
        seq: Tokens of the whole sequence, at least two for each rank; they need not divide.
        heads: Attention heads, of 5 elements.
    """
    n, rank = world.size, world.rank
    every = [lesson.Sizes(2, heads, tokens, 5) for tokens in (seq, seq // (2 * n) * 2 * n, 2 * n)]
    claim, results = like_one_device(
        world, every, zigzag_attention, lambda tokens, ranks: torch.cat(held(tokens, ranks)[rank]), (True,), 2
    )
    times, blocks = timed(world)
    world.figure(lambda: picture(blocks))

    def tokens(whole: int) -> int:
        return chunk_size(whole, 2 * n, rank) + chunk_size(whole, 2 * n, 2 * n - 1 - rank)

    return [
        claim,
        *sent(world, results, costs.zigzag_forward, tokens),
        work(world, every[0]),
        *times,
        *full_form.claims(world, "zigzag", LIU),
    ]
