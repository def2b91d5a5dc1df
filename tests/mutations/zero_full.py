"""Mistakes in the full forms of ZeRO, and in what measures them."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.zero.full.flat_shards.FlatShard.free",
        "self.flat.untyped_storage().resize_(0)",
        "pass",
        test="tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        why="the lesson counts what the small form holds",
    ),
    Mutation(
        "minitrain.zero.full.unsharded_unit.UnshardedUnit.reshard",
        "line.free()",
        "pass",
        test="tests/zero/test_sharded.py::test_each_stage_holds_what_theory_says",
        why="the lesson counts what the small form holds",
    ),
    Mutation(
        "minitrain.zero.full.unsharded_unit.PrefetchOrder.begin",
        "[], True",
        "[], False",
        "minitrain.zero.stage3",
        "full form: time of a step of 4 layers, the next unit",
    ),
    Mutation(
        "minitrain.zero.full.flat_shards.FlatShard.point",
        "self.partition.shard(flat, self.rank)",
        "self.partition.shard(flat, 0)",
        "minitrain.zero.stage1",
        "small form: elements that differ",
    ),
    Mutation(
        "minitrain.lessons.zero.hybrid.leaving",
        "sum(gather_objects(sum(sent), node))",
        "sum(sent)",
        "minitrain.zero.hybrid",
        "bytes that leave a node in a step of A = 3 micro-batches, stage 3",
    ),
    Mutation(
        "minitrain.zero.full.pools.Pool.start_copy",
        "            target.copy_(source)\n            return",
        "            return",
        "minitrain.zero.offload",
        "small form: elements that differ",
    ),
]
