"""Mistakes in the chapter of collectives."""

from tests.mutations import Mutation

RING = "minitrain.collectives.ring"
THEORY = "minitrain.costs.communication"

MUTATIONS = [
    Mutation(f"{RING}.reduce_scatter", "own += incoming", "own -= incoming", RING, "small form: ring all-reduce"),
    Mutation(f"{RING}.all_gather", "range(ranks - 1)", "range(ranks - 2)", RING, "small form: ring all-reduce"),
    Mutation(f"{THEORY}.chunk_size", "elements // ranks", "elements // (ranks + 1)", RING, "ring all-reduce"),
]
