"""Theory and practice together: for each technique a demo that predicts, measures, and claims that the two agree.

`minitrain.lessons.zero.stage1` is the lesson of `minitrain.zero.stage1`, and runs by the technique's own name:
`python -m minitrain.zero.stage1`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.lessons.claims import Claim
    from minitrain.lessons.demo import demo_of, run

_HOME = {
    "Claim": "claims",
    "demo_of": "demo",
    "run": "demo",
}
__all__ = ["Claim", "demo_of", "run"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.lessons` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
