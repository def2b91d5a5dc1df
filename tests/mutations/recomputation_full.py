"""Mistakes in full forms of recomputation."""

from tests.mutations import by_claim, table

MUTATIONS = table(
    by_claim("recomputation.selective", "small form and full form: bytes kept after forward, cores recomputed"),
    ("recomputation.full.selective.recompute", ".recompute(cores, checkpoint)", ".recompute(cores[:1], checkpoint)"),
    by_claim("recomputation.checkpoint", "small form, full form, stopping early: bytes"),
    ("recomputation.full.every_block.every_block_early", "early_stop.checkpoint", "checkpoint"),
)
