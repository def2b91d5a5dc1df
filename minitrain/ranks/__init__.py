"""The processes behind notebooks, tests and demos: ranks that are started once and then run whatever they are given.

Nobody needs this package to learn from the others. It starts ranks within a fraction of a second, says in which line
each of them waits, and ends them all when one fails.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.ranks.ranks import Ranks

_HOME = {
    "Ranks": "ranks",
}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
