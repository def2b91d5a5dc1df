"""Mistakes by which key claims of the chapter context parallel turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.context_parallel"
THEORY = "minitrain.costs"

MUTATIONS = [
    # The gradients of the keys only.
    Mutation(
        f"{THEORY}.context_parallel.gradients_home",
        "2 * seq",
        "seq",
        f"{HOME}.zigzag",
        "bytes sent by this rank, backward",
    ),
    # The late chunks in the order of ranks, so that the last rank has the most work.
    Mutation(
        f"{HOME}.zigzag.held",
        "chunks[2 * ranks - 1 - rank]",
        "chunks[ranks + rank]",
        f"{HOME}.zigzag",
        "zigzag: this rank's",
    ),
]
