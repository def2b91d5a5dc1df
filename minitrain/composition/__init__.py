"""Chapter 13, composition: all parallelisms at once, in one training step.

`settings` describes the training; its model is in `presets`, its layout and steps are in `layout_settings`. `layout`
arranges the ranks and says over which of them each gradient is summed, `model` cuts the GPT for a rank, `gradients` and
`step` serve the loop, which `minitrain/train.py` shows. `ordered_sums` gives data parallelism the bits of one device.
Everything around the step is elsewhere: checkpoints in `minitrain.checkpointing`, the dry run in `minitrain.planning`,
the run in `minitrain.trainer`.
Also called 3D, 4D, 5D parallelism.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.comm.clip_grad_norm import clip_grad_norm
    from minitrain.composition.layout import make_axes
    from minitrain.composition.settings import Layout, Model, Run, Settings, Steps

_HOME = {
    "Layout": "settings",
    "Model": "settings",
    "Run": "settings",
    "Settings": "settings",
    "Steps": "settings",
    "clip_grad_norm": ".comm.clip_grad_norm",
    "make_axes": "layout",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
