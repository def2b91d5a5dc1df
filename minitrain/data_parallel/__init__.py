"""Chapter 02, data parallelism: every rank holds the whole model and learns from its own part of the batch.

A ladder of three files with one signature, each a short step from the last: `naive` sends every gradient after
backward, `bucketed` sends them together, `overlapped` sends while backward still runs. `DataParallel` is the last.
`accumulation` says which batch is learned from, and what that asks of the loss and the learning rate. Three
more send less than once per step: `local_sgd`, `hierarchical_sgd` and `diloco`.

The names that the package itself has are full forms. The small forms of the same names are imported from their files:
`naive.NaiveDataParallel`, `bucketed.BucketedDataParallel`, `overlapped.DataParallel`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minitrain.data_parallel.full.bucketed import BucketedDataParallel
    from minitrain.data_parallel.full.naive import NaiveDataParallel
    from minitrain.data_parallel.full.overlapped import DataParallel

_HOME = {"BucketedDataParallel": "full.bucketed", "DataParallel": "full.overlapped", "NaiveDataParallel": "full.naive"}
__all__ = ["BucketedDataParallel", "DataParallel", "NaiveDataParallel"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import minitrain.data_parallel` needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
