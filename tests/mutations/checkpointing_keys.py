"""Mistakes by which key claims of the chapter checkpointing turn false that no other mutation names."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_test(
        "tests/checkpointing/test_checkpoint.py",
        "the demo compares values, and the manifest says which dtype was asked for",
    ),
    # Saved in float64.
    ("checkpointing.full.shards.WritePlan.__init__", "tensor.detach()", "tensor.detach().double()"),
    by_claim("checkpointing.resharding", "small form: elements changed"),
    # What is read is added to what was there.
    ("checkpointing.resharding.load", "shard[target] = saved", "shard[target] += saved"),
    by_test(
        "tests/costs/test_checkpointing.py::test_a_sampler_for_each_rank_by_hand",
        "the lesson has one sampler for all ranks",
    ),
    # The samples of one rank for those of all.
    ("costs.checkpointing.per_rank_sampler", "begin = ranks * taken", "begin = taken"),
    by_claim("checkpointing.interval", "minutes by which Young's"),
    # The root of δ alone.
    ("checkpointing.interval.young", "math.sqrt(2 * saving * mean)", "math.sqrt(2 * saving) * mean"),
)
