"""Mistakes in the chapter of collectives."""

FOUND_BY = {
    ("collectives.ring", "ring, every verb"): [
        ("collectives.ring.reduce_scatter", "own += incoming", "own -= incoming"),
        ("collectives.ring.all_gather", "range(ranks - 1)", "range(ranks - 2)"),
        ("collectives.ring.all_gather", "[(rank - 1 - step) % ranks]", "[(rank - 1 - step) % ranks].clone()"),
    ],
    ("collectives.ring", "ring all-reduce of 1,048,577"): [
        ("collectives.ring.reduce_scatter", "empty_like(chunks[0])", "empty_like(tensor.view(-1))"),
    ],
    ("collectives.naive", "naive, every verb"): [
        ("collectives.naive.all_reduce", "total += incoming", "total.copy_(incoming)"),
        ("collectives.naive.all_reduce", "send(total, other", "send(incoming, other"),
    ],
    ("collectives.tree", "tree, every verb"): [
        ("collectives.tree.broadcast", "reversed(distances(ranks))", "distances(ranks)"),
        ("collectives.tree.reduce", "total += incoming", "total.copy_(incoming)"),
        ("collectives.tree.distances", "(ranks - 1).bit_length()", "ranks.bit_length() - 1"),
    ],
    ("collectives.halving", "halving, every verb"): [
        ("collectives.halving.reduce_scatter", "keep += incoming", "keep.copy_(incoming)"),
        ("collectives.halving.block", "rank & -width", "rank"),
    ],
    (
        "collectives.hierarchical",
        "hierarchical, up to 1,048,577 float32, all-reduce: bytes sent by this rank across nodes",
    ): [
        ("collectives.hierarchical.all_reduce", "ring.all_reduce(shard, across)", "ring.all_reduce(tensor, across)"),
    ],
    ("collectives.native", "native, every verb"): [
        (
            "collectives.native.reduce_scatter",
            "chunks[rank].copy_(shard[: len(chunks[rank])])",
            "shard[: len(chunks[rank])]",
        ),
    ],
    ("collectives.ring", "ring all-reduce of up to"): [
        ("collectives.ring.all_reduce", "reduce_scatter(tensor, group)", "pass"),
        ("costs.communication.ring_all_gather", "(rank + 1) % ranks", "rank"),
    ],
    ("collectives.hierarchical", "hierarchical, every verb"): [
        ("collectives.hierarchical.all_reduce", "ring.all_reduce(shard, across)", "pass"),
    ],
    ("tests/collectives/test_verbs.py::test_every_verb_gives_what_one_rank_would", "the small form has no broadcast"): [
        ("collectives.full.ring.broadcast", "(rank - source) % ranks", "rank"),
    ],
    ("tests/collectives/test_verbs.py::test_every_verb_gives_what_one_rank_would", "the small form pads by itself"): [
        ("comm.native.reduce_scatter", "padded[rank, : mine", "padded[0, : mine"),
    ],
    ("collectives.ring", "ring"): [
        ("costs.communication.chunk_size", "elements // ranks", "elements // (ranks + 1)"),
    ],
    ("collectives.ring", "ring all-reduce: time"): [
        ("costs.communication.ring_reduce_scatter_time", "(ranks - 1) *", "ranks *"),
    ],
    ("collectives.naive", "naive all-reduce: time"): [
        ("costs.communication.naive_all_reduce_time", "2 * (ranks - 1)", "2 * ranks"),
    ],
    ("collectives.tree", "tree all-reduce of up to"): [
        ("costs.communication.tree_all_reduce", ".bit_length() - 1)", ".bit_length())"),
    ],
    ("collectives.tree", "tree all-reduce: time"): [
        ("costs.communication.rounds", "(ranks - 1).bit_length()", "ranks.bit_length() - 1"),
    ],
    ("collectives.tree", "bytes from which on the ring"): [
        ("costs.communication.crossover", "(ranks - 1 - rounds", "(ranks - rounds"),
        ("costs.communication.crossover", " * (ranks - 1 - rounds(ranks))", ""),
    ],
    ("collectives.halving", "halving all-reduce of up to"): [
        ("costs.communication.halving_all_reduce", "halving + ", ""),
    ],
    ("collectives.halving", "halving all-reduce: time"): [
        ("costs.communication.halving_all_reduce_time", "2 * rounds(ranks)", "rounds(ranks)"),
    ],
    ("collectives.hierarchical", "hierarchical all-reduce on"): [
        ("costs.communication.hierarchical_all_reduce_time", "size / local", "size"),
    ],
    ("collectives.ring", "all-reduce, reduce-sc"): [
        ("costs.communication.bus_bandwidth", "_BUS_FACTORS[operation]", '_BUS_FACTORS["all_gather"]'),
    ],
    ("collectives.naive", "naive all-reduce of 1,048,576 float32: bytes in and out of the root"): [
        ("costs.communication.naive_root_load", "2 * (ranks - 1)", "2 * ranks"),
    ],
}
