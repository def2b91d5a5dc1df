"""Chapter 10, composition: all of it at once, on real text, and back from a checkpoint in another layout.

`settings` says what is asked for, `plan` what it will cost. `layout` arranges the ranks and says over which of them
each gradient is summed, `model` makes a rank's part, `gradients` and `step` train it, `checkpoint` saves it in a form
that any other layout can load. `trainer` is the loop, and `minitrain/train.py` its command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.composition.layout import make_axes
    from minitrain.composition.plan import predict
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
    "predict": "plan",
}
__all__ = ["Layout", "Model", "Run", "Settings", "Steps", "Training", "make_axes", "predict"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.composition` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
