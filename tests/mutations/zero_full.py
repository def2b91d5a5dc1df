"""Mistakes in the full forms of ZeRO, and in what measures them."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.zero.full.flat_shards.FlatShard.free",
        "self.flat.untyped_storage().resize_(0)",
        "pass",
        "minitrain.zero.stage3",
        "bytes of parameters and of gradients",
    ),
    Mutation(
        "minitrain.zero.full.unsharded_unit.UnshardedUnit.reshard",
        "line.free()",
        "pass",
        "minitrain.zero.stage3",
        "bytes of parameters and of gradients",
    ),
    Mutation(
        "minitrain.zero.full.unsharded_unit.PrefetchOrder.begin",
        "[], True",
        "[], False",
        "minitrain.zero.stage3",
        "bytes gathered at once: the root and two units",
    ),
    Mutation(
        "minitrain.zero.full.flat_shards.FlatShard.point",
        "self.partition.shard(flat, self.rank)",
        "self.partition.shard(flat, 0)",
        "minitrain.zero.stage1",
        "small form: elements that differ",
    ),
    Mutation(
        "minitrain.lessons.zero.common.norm_of",
        "sum(gather_objects(own))",
        "own",
        "minitrain.zero.stage2",
        "norm of all gradients",
    ),
    Mutation(
        "minitrain.zero.full.pools.Pool.start_copy",
        "            target.copy_(source)\n            return",
        "            return",
        "minitrain.zero.offload",
        "small form: elements that differ",
    ),
]
