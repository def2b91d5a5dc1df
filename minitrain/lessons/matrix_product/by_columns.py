"""The lesson of `minitrain.matrix_product.by_columns`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm.world import World
from minitrain.costs import matrix_product as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.matrix_product.compare import compare
from minitrain.matrix_product import by_columns


def demo(world: World, rows: int = 4, inner: int = 5, columns: int = 8) -> list[Claim]:
    """Splits Y = XW by columns of W; the table shows what a rank holds, what it sends, and that one device agrees.

    Args:
        rows: Rows of X and Y.
        inner: Columns of X, rows of W.
        columns: Columns of W and Y.
    """
    return compare(world, by_columns, costs.by_columns, rows, inner, columns)
