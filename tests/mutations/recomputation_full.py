"""Mistakes in full forms of recomputation."""

from tests.mutations import Mutation

MUTATIONS = [
    Mutation(
        "minitrain.recomputation.full.selective.recompute",
        "full.recompute(cores, checkpoint)",
        "full.recompute(cores[:1], checkpoint)",
        "minitrain.recomputation.selective",
        "small form and full form: bytes kept after forward, cores recomputed",
    ),
    Mutation(
        "minitrain.recomputation.full.every_block.every_block_early",
        "early_stop.checkpoint",
        "checkpoint",
        "minitrain.recomputation.checkpoint",
        "small form, full form, stopping early: bytes",
    ),
]
