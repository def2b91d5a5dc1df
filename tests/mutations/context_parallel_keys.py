"""Mistakes by which key claims of the chapter context parallel turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("context_parallel.zigzag", "bytes sent by this rank, backward"),
    # The gradients of the keys only.
    ("costs.context_parallel.gradients_home", "2 * seq", "seq"),
    by_claim("context_parallel.zigzag", "output, dQ, dK, dV: distance"),
    # The late chunks in the order of ranks, so that the last rank has the most work.
    ("context_parallel.zigzag.held", "chunks[2 * ranks - 1 - rank]", "chunks[ranks + rank]"),
)
