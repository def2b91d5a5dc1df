"""The picture of the chapter on checkpoints: shards that overlap."""

from __future__ import annotations

from itertools import product

from minitrain.checkpointing.resharding import overlap
from minitrain.comm.pictures import RANKS
from minitrain.lessons.pictures.panels import Figure, box, panels, write


def overlaps(rows: int, columns: int, savers: int, loaders: int) -> Figure:
    """A matrix that is saved by rows and loaded by columns: the files, their overlaps, and the new shards."""
    figure, both = panels(9.5, 3, 3, bare=True, subplot_kw={"aspect": "equal"})
    height, width = rows // savers, columns // loaders
    titles = (f"saved by {savers} ranks", "overlaps: file → rank", f"loaded by {loaders} ranks")
    for axes, title in zip(both, titles, strict=True):
        axes.set(title=title, xlim=(-0.1, columns + 0.1), ylim=(rows + 0.1, -0.1))
    for file in range(savers):
        box(both[0], 0, height * file, columns, height, (RANKS[file][0], ""), lw=3)
        write(both[0], columns / 2, height * (file + 0.5), f"{file}.pt", 10, color="white")
    for file, rank in product(range(savers), range(loaders)):
        in_file, in_shard = overlap((height * file, 0), (height, columns), (0, width * rank), (rows, width))
        top, left = height * file + in_file[0].start, in_file[1].start
        size = in_file[1].stop - in_file[1].start, in_file[0].stop - in_file[0].start
        box(both[1], left, top, *size, (RANKS[file][0], ""), lw=3)
        write(both[1], left + size[0] / 2, top + size[1] / 2, f"{file} → {rank}", 10, color="white")
        corner = width * rank + in_shard[1].start, in_shard[0].start
        box(both[2], *corner, *size, (RANKS[file][0], ""), ec="none")
    for rank in range(loaders):
        box(both[2], width * rank, 0, width, rows, ("none", ""), lw=5)
        write(both[2], width * (rank + 0.5), rows * 3 / 8, f"rank {rank}", 10, color="white")
    return figure
