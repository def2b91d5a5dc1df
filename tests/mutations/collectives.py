"""Mistakes in the chapter of collectives."""

from tests.mutations import Mutation

HOME = "minitrain.collectives"
NAIVE, RING, TREE, HALVING, HIERARCHICAL, NATIVE = (
    f"{HOME}.{name}" for name in ("naive", "ring", "tree", "halving", "hierarchical", "native")
)
FULL = f"{HOME}.full"
THEORY = "minitrain.costs.communication"

MUTATIONS = [
    # Practice: the small forms.
    Mutation(f"{RING}.reduce_scatter", "own += incoming", "own -= incoming", RING, "ring, every verb in each form"),
    Mutation(f"{RING}.all_gather", "range(ranks - 1)", "range(ranks - 2)", RING, "ring, every verb in each form"),
    Mutation(
        f"{RING}.reduce_scatter", "empty_like(chunks[0])", "empty_like(tensor.view(-1))", RING, "small form: ring"
    ),
    Mutation(f"{NAIVE}.all_reduce", "total += incoming", "total.copy_(incoming)", NAIVE, "naive, every verb"),
    Mutation(f"{TREE}.broadcast", "reversed(distances(ranks))", "distances(ranks)", TREE, "tree, every verb"),
    Mutation(f"{HALVING}.reduce_scatter", "keep += incoming", "keep.copy_(incoming)", HALVING, "halving, every verb"),
    Mutation(
        f"{HIERARCHICAL}.all_reduce",
        "ring.all_reduce(shard, across)",
        "ring.all_reduce(tensor, across)",
        HIERARCHICAL,
        "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank across nodes",
    ),
    Mutation(
        f"{NATIVE}.reduce_scatter",
        "chunks[rank].copy_(shard[: len(chunks[rank])])",
        "shard[: len(chunks[rank])]",
        NATIVE,
        "native, every verb",
    ),
    # Practice: the values of each verb in the full forms, and roots other than 0.
    Mutation(f"{FULL}.ring.broadcast", "(rank - source) % ranks", "rank", RING, "ring, every verb"),
    Mutation(f"{FULL}.naive.all_gather", "_send_from(flat, ROOT, group)", "pass", NAIVE, "naive, every verb"),
    Mutation(
        f"{FULL}.naive.reduce_scatter",
        "send(chunks[other]",
        "send(chunks[0].new_zeros(len(chunks[other]))",
        NAIVE,
        "naive, every verb",
    ),
    Mutation(f"{FULL}.tree._down", "place = (rank - root) % ranks", "place = rank", TREE, "tree, every verb"),
    Mutation(f"{FULL}.tree._up", "flat.add_(buffer)", "flat.copy_(buffer)", TREE, "tree, every verb"),
    Mutation(f"{FULL}.halving._fold", "flat.add_(buffer)", "flat.copy_(buffer)", HALVING, "halving, every verb"),
    Mutation(
        f"{FULL}.hierarchical.reduce_scatter",
        "ring.reduce_scatter_chunks(own.split(sizes), grid.across)",
        "own.split(sizes)[grid.node]",
        HIERARCHICAL,
        "hierarchical, every verb",
    ),
    Mutation(
        "minitrain.comm.native.reduce_scatter", "padded[rank, : mine", "padded[0, : mine", NATIVE, "native, every"
    ),
    # Theory.
    Mutation(f"{THEORY}.chunk_size", "elements // ranks", "elements // (ranks + 1)", RING, "ring"),
    Mutation(f"{THEORY}.ring_all_gather", "(rank + 1) % ranks", "rank", RING, "ring all-gather of up to"),
    Mutation(f"{THEORY}.ring_broadcast", "(rank + 1) % ranks == source", "rank == ranks - 1", RING, "ring broadcast"),
    Mutation(f"{THEORY}.naive_broadcast", "rank == source", "rank == 0", NAIVE, "naive broadcast of up to"),
    Mutation(f"{THEORY}.tree_broadcast", "(rank - source) % ranks", "rank", TREE, "tree broadcast of up to"),
    Mutation(f"{THEORY}.rounds", "(ranks - 1).bit_length()", "ranks.bit_length() - 1", TREE, "tree all-reduce: time"),
    Mutation(f"{THEORY}.crossover", "(ranks - 1 - rounds", "(ranks - rounds", TREE, "bytes from which on the ring"),
    Mutation(f"{THEORY}.crossover", " * (ranks - 1 - rounds(ranks))", "", TREE, "bytes from which on the ring"),
    Mutation(
        f"{THEORY}.halving_all_reduce",
        "sent + one(elements, item_size) if rank < 2 * extra else sent",
        "sent",
        HALVING,
        "halving all-reduce of up to",
    ),
    Mutation(f"{THEORY}.halving_all_reduce_time", "2 * (alpha +", "(alpha +", HALVING, "halving all-reduce: time"),
    Mutation(
        f"{THEORY}.hierarchical_all_reduce_time", "size / local", "size", HIERARCHICAL, "hierarchical all-reduce on"
    ),
    Mutation(
        f"{THEORY}.bus_bandwidth",
        "_BUS_FACTORS[operation]",
        '_BUS_FACTORS["all_gather"]',
        RING,
        "all-reduce, reduce-sc",
    ),
    Mutation(
        f"{THEORY}.naive_root_load",
        "2 * (ranks - 1)",
        "2 * ranks",
        NAIVE,
        "naive all-reduce of 1,048,576 float32: bytes in and out of the root",
    ),
]
