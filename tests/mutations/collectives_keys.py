"""Mistakes by which key claims of the chapter collectives turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.collectives"
THEORY = "minitrain.costs"

MUTATIONS = [
    # Every rank sends as much as the root.
    Mutation(
        f"{THEORY}.communication.naive_all_reduce",
        "ranks - 1 if rank == 0 else 1)",
        "ranks - 1)",
        f"{HOME}.naive",
        "naive all-reduce of up to 1,048,577",
    ),
    # One latency for all messages.
    Mutation(
        f"{THEORY}.communication.naive_all_reduce_time",
        "2 * (ranks - 1) * (alpha + beta * size)",
        "2 * (alpha + (ranks - 1) * beta * size)",
        f"{HOME}.naive",
        "naive all-reduce: time",
    ),
    # The second way round leaves out another chunk than the first.
    Mutation(
        f"{THEORY}.communication.ring_all_reduce",
        "return reduce_scatter + ring_all_gather(elements, item_size, ranks, rank)",
        "return reduce_scatter + reduce_scatter",
        f"{HOME}.ring",
        "ring all-reduce of up to 1,048,577",
    ),
    # The whole tensor in each step.
    Mutation(
        f"{THEORY}.communication.ring_reduce_scatter_time",
        "beta * size / ranks",
        "beta * size",
        f"{HOME}.ring",
        "ring all-reduce: time",
    ),
    # Down the tree only.
    Mutation(
        f"{THEORY}.communication.tree_all_reduce",
        "children + (rank > 0)",
        "children",
        f"{HOME}.tree",
        "tree all-reduce of up to 1,048,577",
    ),
    # The sums are added up once more, in place of being collected.
    Mutation(
        f"{HOME}.hierarchical.all_reduce",
        "ring.all_gather(tensor, within)",
        "ring.all_reduce(tensor, within)",
        f"{HOME}.hierarchical",
        "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank within",
    ),
    # The whole tensor in each step.
    Mutation(
        f"{THEORY}.communication.ring_reduce_scatter_time",
        "beta * size / ranks",
        "beta * size",
        f"{HOME}.hierarchical",
        "flat ring all-reduce",
    ),
    # Added up in float64.
    Mutation(
        f"{HOME}.native.all_reduce",
        "messages.all_reduce(tensor.detach(), group).wait()",
        "tensor.copy_(messages.all_reduce(tensor.detach().double(), group).wait())",
        f"{HOME}.native",
        "native all_reduce of",
    ),
    # A row of padding too many.
    Mutation(
        f"{HOME}.native.reduce_scatter",
        "longest = len(chunks[0])",
        "longest = len(chunks[0]) + 1",
        f"{HOME}.native",
        "native reduce_scatter or all_gather",
    ),
]
