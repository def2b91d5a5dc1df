"""Groups of ranks with the run's time limit: `new_group` here makes them, and `axes` makes those of a grid.

Unless it is told otherwise, torch gives a new group a limit of 30 minutes with gloo and 10 minutes with NCCL, whatever
the limit of the group of everyone is. A rank that hangs would be noticed only then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def time_limit() -> timedelta:
    """How long a communication may take: the `timeout` of `World.start`, which torch keeps with everyone's group."""
    return _options_of_everyone()._timeout


def limited() -> Any:
    """Options for a new group with everyone's backend: the run's time limit, and otherwise torch's defaults.

    A group must get its limit when it is made. A limit that is set later, with torch's `_set_pg_timeout`, holds for
    gloo's collectives, but not for its messages between two ranks, nor while ranks meet to make the group.
    """
    options = type(_options_of_everyone())()
    options._timeout = time_limit()
    return options


def _options_of_everyone() -> Any:
    everyone = dist.group.WORLD
    assert everyone is not None, "start a World first"
    return everyone._get_backend(torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")).options


def new_group(ranks: Sequence[int], backend: str | None = None, description: str | None = None) -> Any:
    """torch's `new_group` with the run's time limit. Every rank of the world calls it, even those not in the group.

    Args:
        ranks: The members, by their global ranks; on others a number is returned, and no group.
        backend: "gloo" or "nccl"; None for everyone's.
        description: A name, by which a ledger tells groups apart.
    """
    return dist.new_group(list(ranks), timeout=time_limit(), backend=backend, group_desc=description)


# In a rehearsal (`minitrain.watch.rehearsal`), the backend that would carry a group's messages on GPUs.
rehearsed: Callable[[dist.ProcessGroup | None], str] | None = None


def backend(group: dist.ProcessGroup | None = None) -> str:
    """The backend of a group's messages, "nccl" or "gloo"; in a rehearsal, the one that GPUs would use."""
    return dist.get_backend(group) if rehearsed is None else rehearsed(group)
