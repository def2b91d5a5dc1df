"""Chapter 05, recomputation: what backward needs is computed again instead of being kept.

Three files that differ in what is computed again: `checkpoint` each block by itself, `every_kth` segments of k blocks,
`selective` the core of attention only. The first and the last have a full form for any model, and
`full/early_stop.py` is a faster `checkpoint`, which goes backward through the first call's graph.

Four more compute nothing again: what waits for backward may be encoded (`binarized` and `sparse_rows` without loss,
`delayed_precision` with fewer bits), or wait on the host (`activation_offload`).

The names that the package itself has are full forms: `recompute`, for the blocks of any model. The small forms of that
name are `checkpoint.recompute` and `selective.recompute`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.recomputation.full.every_block import recompute

_HOME = {"recompute": "full.every_block"}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
