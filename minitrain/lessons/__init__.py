"""Theory and practice together: for each technique a demo that predicts, measures, and claims that the two agree.

`minitrain.lessons.zero.stage1` is the lesson of `minitrain.zero.stage1`, and runs by the technique's own name:
`python -m minitrain.zero.stage1`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.lessons.claims import Claim
    from minitrain.lessons.demo import demo_of, run

_HOME = {
    "Claim": "claims",
    "demo_of": "demo",
    "run": "demo",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
