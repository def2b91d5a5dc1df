"""The pictures of the lessons on context parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.comm.pictures import RANKS
from minitrain.costs import context_parallel as costs
from minitrain.lessons.pictures.panels import Figure, bar, box, panels

if TYPE_CHECKING:
    from minitrain.lessons.context_parallel.common import Block


def zigzag(forms: dict[str, list[list[Block]]]) -> Figure:
    """Above, which rank computes which block of scores, numbered in its rank's order; below, when."""
    ranks = len(next(iter(forms.values())))
    end = max(block.end for blocks in forms.values() for its in blocks for block in its)
    n, heights = len(forms), [4, 0.8 + 0.28 * ranks]
    figure, both = panels(9, 5.0 + 0.25 * ranks, n, rows=2, height_ratios=heights)
    for (name, blocks), matrix, times in zip(forms.items(), both[:n], both[n:], strict=True):
        matrix.spines[["top", "right"]].set_visible(True)
        seq = 1 + max(block.queries[1] for its in blocks for block in its)
        for rank, its in enumerate(blocks):
            look = RANKS[rank % len(RANKS)]
            for number, block in enumerate(its, 1):
                (top, bottom), (left, right) = block.queries, block.keys
                box(matrix, left, top, right + 1 - left, bottom + 1 - top, look, f"{number}", 7, 0.6)
                bar(times, rank, block.start, block.end - block.start, look, f"{number}", 7, 0.6, height=0.8)
        matrix.set(xlim=(0, seq), ylim=(seq, 0), aspect="equal", title=name, xlabel="key", ylabel="query")
        matrix.set(xticks=range(0, seq + 1, 4), yticks=range(0, seq + 1, 4))  # borders of the contiguous chunks
        matrix.plot([0, seq], [0, seq], color="black", lw=0.8, ls="--")
        times.set(xlim=(0, end * 1.01), ylim=(ranks - 0.4, -0.6), xlabel="time, in blocks of (s/n)² scores")
        times.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    return figure


def all_gather() -> Figure:
    """Bytes that a rank sends in a step, for three models, over the number of ranks; Ulysses ends with the heads."""
    models = (
        ("64 heads, 64 key heads", 64, 64),
        ("Llama 3 405B: 128 heads, 8 key heads", 128, 8),
        ("a tensor-parallel rank of it: 16 and 1", 16, 1),
    )
    ranks = [2**power for power in range(1, 9)]
    figure, every = panels(9.5, 3.4, 3, sharey=True)
    for axes, (title, heads, key_heads) in zip(every, models, strict=True):
        axes.spines[["top", "right"]].set_visible(True)
        one = costs.Attention(heads, key_heads, seq=ranks[-1], head=1, item=1)
        scale, fit = one.bytes(heads), [n for n in ranks if heads % n == 0]
        gathered = [2 * costs.gather(one, n).bytes / scale for n in ranks]
        axes.loglog(ranks, [costs.ring_step(one, n) / scale for n in ranks], "s-", color="#AAAAAA", label="ring")
        axes.loglog(ranks, gathered, "o-", color="#777777", label="gather")
        axes.loglog(fit, [2 * costs.ulysses(one, n).bytes / scale for n in fit], "^-", color="black", label="Ulysses")
        cross = costs.crossing(heads, key_heads)
        if cross < max(ranks):
            axes.axvline(cross, color="gray", linestyle=":")
            axes.text(cross, 0.03, f" n = {cross:.3g}", transform=axes.get_xaxis_transform(), fontsize=8)
        axes.set_xticks(ranks, [str(n) for n in ranks], fontsize=8)
        axes.minorticks_off()
        axes.set(xlabel="ranks")
        axes.set_title(title, fontsize=9)
    every[0].set_ylabel("sent by a rank in a step, in S_Q")
    every[0].legend(fontsize="small")
    return figure


def turning(ranks: int) -> Figure:
    """A frame for each step of the ring: whose keys and values are next to each rank's queries; pale where masked."""
    figure, (axes,) = panels(7.5, 0.5 + 0.75 * ranks)
    for step in range(ranks):
        for rank in range(ranks):
            owner = (rank - step) % ranks
            masked = owner > rank
            for left, width, whose, text in ((0, 0.6, rank, f"Q {rank}"), (0.65, 0.9, owner, f"K, V {owner}")):
                color, hatch = RANKS[whose % len(RANKS)]
                look, alpha = ((color, ""), 0.25) if masked else ((color, hatch), 1.0)
                box(axes, 2.2 * rank + left, 1.4 * step, width, 0.8, look, text, 8, 1, alpha=alpha)
            if step < ranks - 1 and rank < ranks - 1:  # what goes from the last rank to the first is not drawn
                begin = (2.2 * rank + 1.1, 1.4 * step + 0.82)
                axes.annotate("", (begin[0] + 2.2, begin[1] + 0.56), begin, arrowprops={"arrowstyle": "->"})
    axes.set(xlim=(-0.1, 2.2 * ranks - 0.5), ylim=(1.4 * ranks - 0.5, -0.1))
    axes.set_xticks([2.2 * rank + 0.8 for rank in range(ranks)], [f"rank {rank}" for rank in range(ranks)])
    axes.set_yticks([1.4 * step + 0.4 for step in range(ranks)], [f"step {step}" for step in range(ranks)])
    axes.xaxis.tick_top()
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    return figure
