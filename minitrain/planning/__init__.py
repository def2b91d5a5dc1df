"""Chapter 14, planning: what a layout of ranks will hold, send and wait for, and which layout to choose.

What there is to plan with: `profile`, time and bytes of each layer; `memory_model`, what a rank holds, on one screen;
`plan`, the trainer's dry run. How to choose: `partition`, the best cut into stages; `pipedream_planner`, stages with
replicas; `search`, and `halving`, by short trials. The planner made of all this is in `full/`: times of a step on a
cluster, proposals, published runs, and a game in which you choose yourself.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.planning.full.proposals import propose
    from minitrain.planning.plan import predict

_HOME = {
    "predict": "plan",
    "propose": "full.proposals",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
