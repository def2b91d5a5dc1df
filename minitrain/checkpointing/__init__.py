"""Chapter 15, checkpointing: a training is saved in one layout of ranks and read in any other.

`atomic` saves completely or not at all, `asynchronous` behind the training's back, and `flash` into shared memory;
`position` is all that the data have to keep, and `interval` how often to save. `resharding` saves one tensor in one
layout and loads it in another; `checkpoint` does so with whole trainings. In `full`, `shards` says which part of each
tensor a rank holds, `manifest` what is complete and undamaged, and `weights` brings plain weights in and out.
For a model of your own: `save`, `load`, `newest`, and `state_of` a stage of ZeRO.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.checkpointing.checkpoint import load, newest, save
    from minitrain.checkpointing.full.stage import state_of

_HOME = {"load": "checkpoint", "newest": "checkpoint", "save": "checkpoint", "state_of": "full.stage"}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
