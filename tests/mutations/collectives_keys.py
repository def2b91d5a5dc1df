"""Mistakes by which key claims of the chapter collectives turn false that no other mutation names."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("collectives.naive", "naive all-reduce of up to 1,048,577"),
    # Every rank sends as much as the root.
    ("costs.communication.naive_all_reduce", "ranks - 1 if rank == 0 else 1)", "ranks - 1)"),
    by_claim("collectives.naive", "naive all-reduce: time"),
    # One latency for all messages.
    ("costs.communication.naive_all_reduce_time", "2 * (ranks - 1) * (alpha + beta", "2 * (alpha + (ranks - 1) * beta"),
    by_claim("collectives.ring", "ring all-reduce of up to 1,048,577"),
    # The second way round leaves out another chunk than the first.
    ("costs.communication.ring_all_reduce", "+ ring_all_gather(elements, item_size, ranks, rank)", "+ reduce_scatter"),
    by_claim("collectives.ring", "ring all-reduce: time"),
    # The whole tensor in each step.
    ("costs.communication.ring_reduce_scatter_time", "beta * size / ranks", "beta * size"),
    by_claim("collectives.tree", "tree all-reduce of up to 1,048,577"),
    # Down the tree only.
    ("costs.communication.tree_all_reduce", "children + (rank > 0)", "children"),
    by_claim(
        "collectives.hierarchical", "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank within"
    ),
    # The sums are added up once more, in place of being collected.
    ("collectives.hierarchical.all_reduce", "ring.all_gather(tensor, within)", "ring.all_reduce(tensor, within)"),
    by_claim("collectives.hierarchical", "flat ring all-reduce"),
    # The whole tensor in each step.
    ("costs.communication.ring_reduce_scatter_time", "beta * size / ranks", "beta * size"),
    by_claim("collectives.native", "native all_reduce of"),
    # Added up in float64.
    (
        "collectives.native.all_reduce",
        "messages.all_reduce(tensor.detach(), group).wait()",
        "tensor.copy_(messages.all_reduce(tensor.detach().double(), group).wait())",
    ),
    by_claim("collectives.native", "native reduce_scatter or all_gather"),
    # A row of padding too many.
    ("collectives.native.reduce_scatter", "longest = len(chunks[0])", "longest = len(chunks[0]) + 1"),
)
