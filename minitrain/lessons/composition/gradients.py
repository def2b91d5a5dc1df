"""The lesson of `minitrain.composition.gradients`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim


def demo(world: World, blocks: int = 1) -> list[Claim]:
    """Takes gradients of one batch in every layout that the ranks allow; the table shows one device's, and their norm.

    Args:
        blocks: Blocks of the GPT for each rank.
    """
    from minitrain.lessons.composition import parts as lesson_parts  # it needs the class above

    return lesson_parts.of_gradients(world, blocks)
