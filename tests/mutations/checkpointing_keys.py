"""Mistakes by which key claims of the chapter checkpointing turn false that no other mutation names."""

from tests.mutations import Mutation

HOME = "minitrain.checkpointing"
FULL = "minitrain.checkpointing.full"
THEORY = "minitrain.costs"

MUTATIONS = [
    # Saved in float64.
    Mutation(
        f"{FULL}.shards.WritePlan.__init__",
        "tensor.detach()",
        "tensor.detach().double()",
        test="tests/checkpointing/test_checkpoint.py",
        why="the demo compares values, and the manifest says which dtype was asked for",
    ),
    # What is read is added to what was there.
    Mutation(
        f"{HOME}.resharding.load",
        "shard[target] = saved",
        "shard[target] += saved",
        f"{HOME}.resharding",
        ("small form: elements changed", "small form: elements that differ"),
    ),
    # The samples of one rank for those of all.
    Mutation(
        f"{THEORY}.checkpointing.per_rank_sampler",
        "begin = ranks * taken",
        "begin = taken",
        test="tests/costs/test_checkpointing.py::test_a_sampler_for_each_rank_by_hand",
        why="the lesson has one sampler for all ranks",
    ),
    # The root of δ alone.
    Mutation(
        f"{HOME}.interval.young",
        "math.sqrt(2 * saving * mean)",
        "math.sqrt(2 * saving) * mean",
        f"{HOME}.interval",
        "minutes by which Young's",
    ),
]
