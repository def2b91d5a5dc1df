"""The lesson of `minitrain.sequence_parallel.mappings`: what its demo claims, and how that is measured."""

from __future__ import annotations

from minitrain.comm import World
from minitrain.lessons import Claim
from minitrain.lessons.claims import as_key
from minitrain.lessons.sequence_parallel import common, small


def demo(world: World, batch: int = 2, shard: int = 3, width: int = 4) -> list[Claim]:
    """Applies both operators; the table shows that each sends half an all-reduce, and is the other's transpose.

    Args:
        batch: Sequences.
        shard: Tokens of each sequence on each rank.
        width: Elements of a token.
    """
    of_small_form = small.operators(world, batch, shard, width)
    first, *others = common.operators(world, batch, shard, width)
    return [*of_small_form, *as_key(first), *others]
