"""The lesson of `minitrain.composition.model`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim


def demo(world: World, layers: int = 9, hidden: int = 64) -> list[Claim]:
    """Makes parts of a GPT in every layout that the ranks allow; the table shows their bytes, and those while made.

    Args:
        layers: Blocks of the GPT, at least as many as ranks.
        hidden: Its width; rounded up to a multiple of the ranks.
    """
    from minitrain.lessons.composition import parts as lesson_parts  # it needs the functions above

    return lesson_parts.of_models(world, layers, hidden)
