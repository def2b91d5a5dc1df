"""Mistakes in the chapter of collectives."""

from tests.mutations import Mutation

RING = "minitrain.collectives.ring"
THEORY = "minitrain.costs.communication"

MUTATIONS = [
    Mutation(f"{RING}.reduce_scatter", "own += incoming", "own -= incoming", RING, "ring"),
    Mutation(f"{RING}.all_gather", "range(ranks - 1)", "range(ranks - 2)", RING, "ring"),
    Mutation(f"{THEORY}.chunk_size", "elements // ranks", "elements // (ranks + 1)", RING, "ring"),
]
