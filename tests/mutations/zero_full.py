"""Mistakes in the full forms of ZeRO, and in what measures them."""

from tests.mutations import by_claim, by_test, table

MUTATIONS = table(
    by_test(
        "tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        "the lesson counts what the small form holds",
    ),
    ("zero.full.flat_shards.FlatShard.free", "self.flat.untyped_storage().resize_(0)", "pass"),
    ("zero.full.unsharded_unit.UnshardedUnit.reshard", "line.free()", "pass"),
    by_claim("zero.stage3", "full form: time of a step of 4 layers, the next unit"),
    ("zero.full.unsharded_unit.PrefetchOrder.begin", "[], True", "[], False"),
    by_claim("zero.stage1", "small form: elements that differ"),
    ("zero.full.flat_shards.FlatShard.point", "self.partition.shard(flat, self.rank)", "self.partition.shard(flat, 0)"),
    by_claim("zero.hybrid", "bytes that leave a node in a step of A = 3 micro-batches, stage 3"),
    ("lessons.zero.hybrid.leaving", "sum(gather_objects(sum(sent), node))", "sum(sent)"),
)
