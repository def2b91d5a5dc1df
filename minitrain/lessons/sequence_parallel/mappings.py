"""The lesson of `minitrain.sequence_parallel.mappings`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim


def demo(world: World, batch: int = 2, shard: int = 3, width: int = 4) -> list[Claim]:
    """Applies both operators; the table shows that each sends half an all-reduce, and is the other's transpose.

    Args:
        batch: Sequences.
        shard: Tokens of each sequence on each rank.
        width: Elements of a token.
    """
    from minitrain.lessons.sequence_parallel import common as lesson  # it needs the operators above

    return lesson.operators(world, batch, shard, width)
