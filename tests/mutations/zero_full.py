"""Mistakes in the full forms of ZeRO, and in what measures them."""

FOUND_BY = {
    (
        "tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        "the lesson counts what the small form holds",
    ): [
        ("zero.full.flat_shards.FlatShard.free", "self.flat.untyped_storage().resize_(0)", "pass"),
        ("zero.full.unsharded_unit.UnshardedUnit.reshard", "line.free()", "pass"),
    ],
    ("zero.stage3", "full form: time of a step of 4 layers, the next unit"): [
        ("zero.full.unsharded_unit.PrefetchOrder.begin", "[], True", "[], False"),
    ],
    ("zero.stage1", "small form: elements that differ"): [
        ("zero.full.flat_shards.FlatShard.point", ".partition.shard(flat, self.rank)", ".partition.shard(flat, 0)"),
    ],
    ("zero.hybrid", "bytes that leave a node in a step of A = 3 micro-batches, stage 3"): [
        ("lessons.zero.hybrid.leaving", "sum(gather_objects(sum(sent), node))", "sum(sent)"),
    ],
    ("zero.offload", "small form: elements that differ"): [
        ("zero.full.pools.Pool.start_copy", "target.copy_(source)\n            return", "return"),
    ],
}
