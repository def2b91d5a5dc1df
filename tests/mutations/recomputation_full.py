"""Mistakes in full forms of recomputation."""

FOUND_BY = {
    ("recomputation.selective", "small form and full form: bytes kept after forward, cores recomputed"): [
        ("recomputation.full.selective.recompute", "recompute(cores, checkpoint)", "recompute(cores[:1], checkpoint)"),
    ],
    ("recomputation.checkpoint", "small form, full form, stopping early: bytes"): [
        ("recomputation.full.every_block.every_block_early", "early_stop.checkpoint", "checkpoint"),
    ],
}
