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
    Mutation(f"{RING}.reduce_scatter", "own += incoming", "own -= incoming", RING, "ring, every verb"),
    Mutation(f"{RING}.all_gather", "range(ranks - 1)", "range(ranks - 2)", RING, "ring, every verb"),
    Mutation(
        f"{RING}.reduce_scatter",
        "empty_like(chunks[0])",
        "empty_like(tensor.view(-1))",
        RING,
        "ring all-reduce of 1,048,577",
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
    # Practice: what is right in some worlds, for some ranks, or for some sizes.
    Mutation(
        f"{RING}.all_gather",
        "missing = chunks[(rank - 1 - step) % ranks]",
        "missing = chunks[(rank - 1 - step) % ranks].clone()",
        RING,
        "ring, every verb",
    ),
    Mutation(f"{RING}.all_reduce", "reduce_scatter(tensor, group)", "pass", RING, "ring all-reduce of up to"),
    Mutation(f"{NAIVE}.all_reduce", "send(total, other", "send(incoming, other", NAIVE, "naive, every verb"),
    Mutation(f"{TREE}.reduce", "total += incoming", "total.copy_(incoming)", TREE, "tree, every verb"),
    Mutation(f"{TREE}.distances", "(ranks - 1).bit_length()", "ranks.bit_length() - 1", TREE, "tree, every verb"),
    Mutation(f"{HALVING}.block", "rank & -width", "rank", HALVING, "halving, every verb"),
    Mutation(
        f"{HIERARCHICAL}.all_reduce", "ring.all_reduce(shard, across)", "pass", HIERARCHICAL, "hierarchical, every verb"
    ),
    Mutation(
        f"{FULL}.ring.broadcast",
        "(rank - source) % ranks",
        "rank",
        test="tests/collectives/test_verbs.py::test_every_verb_gives_what_one_rank_would",
        why="the small form has no broadcast",
    ),
    Mutation(
        "minitrain.comm.native.reduce_scatter",
        "padded[rank, : mine",
        "padded[0, : mine",
        test="tests/collectives/test_verbs.py::test_every_verb_gives_what_one_rank_would",
        why="the small form pads by itself",
    ),
    # Theory.
    Mutation(f"{THEORY}.chunk_size", "elements // ranks", "elements // (ranks + 1)", RING, "ring"),
    Mutation(f"{THEORY}.ring_all_gather", "(rank + 1) % ranks", "rank", RING, "ring all-reduce of up to"),
    Mutation(f"{THEORY}.ring_reduce_scatter_time", "(ranks - 1) *", "ranks *", RING, "ring all-reduce: time"),
    Mutation(f"{THEORY}.naive_all_reduce_time", "2 * (ranks - 1)", "2 * ranks", NAIVE, "naive all-reduce: time"),
    Mutation(f"{THEORY}.tree_all_reduce", ".bit_length() - 1)", ".bit_length())", TREE, "tree all-reduce of up to"),
    Mutation(f"{THEORY}.rounds", "(ranks - 1).bit_length()", "ranks.bit_length() - 1", TREE, "tree all-reduce: time"),
    Mutation(f"{THEORY}.crossover", "(ranks - 1 - rounds", "(ranks - rounds", TREE, "bytes from which on the ring"),
    Mutation(f"{THEORY}.crossover", " * (ranks - 1 - rounds(ranks))", "", TREE, "bytes from which on the ring"),
    Mutation(
        f"{THEORY}.halving_all_reduce",
        "halving + ",
        "",
        HALVING,
        "halving all-reduce of up to",
    ),
    Mutation(
        f"{THEORY}.halving_all_reduce_time", "2 * rounds(ranks)", "rounds(ranks)", HALVING, "halving all-reduce: time"
    ),
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
