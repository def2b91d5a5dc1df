"""Chapter 04, ZeRO: data parallelism in which no rank holds what another rank already holds.

A ladder with one signature, each a short step from the last: `Zero1` divides the optimizer states over the ranks,
`Zero2` the gradients too, `Zero3` the parameters too; `ZeroOffload` keeps states and step on the host, and
`HybridZero3` has a replica of the model on every node. On one device already, `step_in_backward` frees each gradient as
soon as it is used.

The names that the package itself has are full forms. The small forms of the same names are imported from their files:
`stage1.Zero1`, `stage2.Zero2`, `stage3.Zero3`, `hybrid.HybridZero3`; `offload.ZeroOffload` has no full form.
`Partition` is the arithmetic beneath the full forms: tensors side by side in one flat buffer, cut into equal shards.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.zero.full.hybrid import HybridZero3
    from minitrain.zero.full.partition import Partition
    from minitrain.zero.full.stage1 import Zero1
    from minitrain.zero.full.stage2 import Zero2
    from minitrain.zero.full.stage3 import Zero3

_HOME = {
    "HybridZero3": "full.hybrid",
    "Partition": "full.partition",
    "Zero1": "full.stage1",
    "Zero2": "full.stage2",
    "Zero3": "full.stage3",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
