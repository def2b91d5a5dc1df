"""Chapter 02, data parallelism: every rank holds the whole model and learns from its own part of the batch.

A ladder of three files with one signature, each a short step from the last: `naive` sends every gradient after
backward, `bucketed` sends them together, `overlapped` sends while backward still runs.
`accumulation` says which batch is learned from, and what that asks of the loss and the learning rate. Three
more send less than once per step: `local_sgd`, `hierarchical_sgd` and `diloco`.

The names that the package itself has are full forms: `DataParallel`, that of the last rung. The small forms are
imported from their files, also `overlapped.DataParallel`.
"""

from typing import TYPE_CHECKING

from minitrain.comm.lazy import lazily

if TYPE_CHECKING:
    from minitrain.data_parallel.full.overlapped import DataParallel

_HOME = {"DataParallel": "full.overlapped"}
__all__ = list(_HOME)
__getattr__ = lazily(__name__, _HOME)
