"""Chapter 13, composition: all parallelisms at once, in one training step.

`settings` says what is asked for. `layout` arranges the ranks and says over which of them each gradient is summed,
`model` makes a rank's part, `gradients` and `step` train it. What stands around the step is elsewhere: checkpoints in
`minitrain.checkpointing`, the dry run in `minitrain.planning`, the run in `minitrain.trainer`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.composition.layout import make_axes
    from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
    from minitrain.composition.step import Training

_HOME = {
    "Layout": "settings",
    "Model": "settings",
    "Run": "settings",
    "Settings": "settings",
    "Steps": "settings",
    "Training": "step",
    "make_axes": "layout",
}
__all__ = ["Layout", "Model", "Run", "Settings", "Steps", "Training", "make_axes"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.composition` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
