"""The lesson of `minitrain.matrix_product.by_data`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm.world import World
from minitrain.costs import matrix_product as costs
from minitrain.lessons.claims import Claim
from minitrain.lessons.matrix_product.compare import compare
from minitrain.matrix_product import by_data


def demo(world: World) -> list[Claim]:
    """Splits Y = XW by rows of X; the table shows what a rank holds, what it sends, and that one device agrees."""
    return compare(world, by_data, costs.by_data, 4, 5, 8)
