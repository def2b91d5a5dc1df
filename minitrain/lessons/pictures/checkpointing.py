"""The picture of the chapter on checkpoints: shards that overlap."""

from __future__ import annotations

from itertools import product

from minitrain.checkpointing.resharding import overlap
from minitrain.comm.pictures import RANKS
from minitrain.lessons.pictures.panels import Figure, panels


def overlaps(rows: int, columns: int, savers: int, loaders: int) -> Figure:
    """A matrix that is saved by rows and loaded by columns: the files, their overlaps, and the new shards."""
    from matplotlib.patches import Rectangle

    figure, both = panels(9.5, 3, 3, subplot_kw={"aspect": "equal"})
    height, width = rows // savers, columns // loaders
    titles = (f"saved by {savers} ranks", "overlaps: file → rank", f"loaded by {loaders} ranks")
    for axes, title in zip(both, titles, strict=True):
        axes.set(title=title, xlim=(-0.1, columns + 0.1), ylim=(rows + 0.1, -0.1))
        axes.axis("off")
    looks = {"edgecolor": "white", "linewidth": 3}
    for file in range(savers):
        both[0].add_patch(Rectangle((0, height * file), columns, height, facecolor=RANKS[file][0], **looks))
        both[0].text(columns / 2, height * (file + 0.5), f"{file}.pt", ha="center", va="center", color="white")
    for file, rank in product(range(savers), range(loaders)):
        in_file, in_shard = overlap((height * file, 0), (height, columns), (0, width * rank), (rows, width))
        top, left = height * file + in_file[0].start, in_file[1].start
        size = in_file[1].stop - in_file[1].start, in_file[0].stop - in_file[0].start
        both[1].add_patch(Rectangle((left, top), *size, facecolor=RANKS[file][0], **looks))
        both[1].text(left + size[0] / 2, top + size[1] / 2, f"{file} → {rank}", ha="center", va="center", color="white")
        corner = width * rank + in_shard[1].start, in_shard[0].start
        both[2].add_patch(Rectangle(corner, *size, facecolor=RANKS[file][0], edgecolor="none"))
    for rank in range(loaders):
        frame = {"facecolor": "none", "edgecolor": "white", "linewidth": 5}
        both[2].add_patch(Rectangle((width * rank, 0), width, rows, **frame))
        both[2].text(width * (rank + 0.5), rows * 3 / 8, f"rank {rank}", ha="center", va="center", color="white")
    return figure
