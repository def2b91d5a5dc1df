"""The bar of memory, which returns at the end of each chapter: what one GPU holds of a 7-billion-parameter model.

The kinds of bytes have the same colors and patterns in all pictures of the course.
"""

from __future__ import annotations

from collections.abc import Mapping

from minitrain.comm.pictures import BYTES as LOOKS
from minitrain.lessons.pictures.panels import Figure, bar, key, name_rows, panels


def memory_bar(bars: Mapping[str, Mapping[str, float]], gpu: float = 80e9, digits: int = 0) -> Figure:
    """One bar for each way to train: the bytes on one GPU, by kind, and a line where the GPU's memory ends.

    Args:
        bars: Name of a way -> kind -> bytes. A kind that is missing is not held.
        gpu: Bytes of memory on a GPU.
        digits: After the point, in a bar's sum.
    """
    figure, (axes,) = panels(9, 1.4 + 0.55 * len(bars))
    for row, sizes in enumerate(bars.values()):
        left = 0.0
        for kind, look in LOOKS.items():
            gigabytes = sizes.get(kind, 0) / 1e9
            bar(axes, row, left, gigabytes, look, height=0.6)
            left += gigabytes
        where = {"xytext": (6, 0), "textcoords": "offset points"}
        text = axes.annotate(f"{left:,.{digits}f} GB", (left, row), va="center", fontsize=9, **where)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})  # it may lie on the GPU's line
    key(figure, axes, LOOKS, axes.axvline(gpu / 1e9, color="black", linestyle="--", label=f"a GPU's {gpu / 1e9:g} GB"))
    name_rows(axes, list(bars))
    axes.set_xlim(0, 1.15 * max(gpu, *(sum(sizes.values()) for sizes in bars.values())) / 1e9)
    axes.set_xlabel("GB on one GPU")
    return figure
