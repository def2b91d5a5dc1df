"""Control messages: what ranks tell each other about the data, beside the data.

Shapes, checks and virtual times travel on a group of their own, with gloo on CPUs, whatever carries the tensors. The
ledger leaves that group out, so that what a lesson counts is what a training run would send.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

CONTROL = "control"  # the description that marks a group as one for control messages

_companions: dict[dist.ProcessGroup, dist.ProcessGroup] = {}


def control(group: dist.ProcessGroup | None = None, timeout: float = 60.0) -> dist.ProcessGroup:
    """The control group beside `group`, made when it is first asked for; every rank of `group` must ask.

    Args:
        group: The ranks that talk; None means everyone.
        timeout: Seconds after which a control message that has not come is an error. It counts for a new group only.
    """
    group = group or dist.group.WORLD
    assert group is not None, "start a World first"
    if group not in _companions:
        ranks = dist.get_process_group_ranks(group)
        companion = dist.new_group(
            ranks,
            backend="gloo",
            timeout=timedelta(seconds=timeout),
            group_desc=CONTROL,
            use_local_synchronization=True,  # only the group's own ranks take part in making it
        )
        assert isinstance(companion, dist.ProcessGroup)
        _companions[group] = companion
    return _companions[group]


def forget_control_groups() -> None:
    """Drop the companions when the process groups they belong to are destroyed."""
    _companions.clear()


def gather_objects(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """Every rank's `value`, in rank order, on every rank. Values must be picklable."""
    beside = control(group)
    values: list[Any] = [None] * dist.get_world_size(beside)
    dist.all_gather_object(values, value, group=beside)
    return values


def checking(check: bool | None) -> bool:
    """Whether ranks compare shapes before they send: as asked for, and where nothing is said, in demos and notebooks.

    Demos and notebooks run with torch's debug level DETAIL (see `World.start`), benchmarks and training do not.
    """
    return dist.get_debug_level() == dist.DebugLevel.DETAIL if check is None else check


def agree(what: str, tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Check that all ranks bring the same shape and dtype, contiguous, before anything is sent.

    Without it a mismatch gives wrong numbers on some ranks, or waits for a message that never comes.

    Raises:
        ValueError: On every rank alike, naming what differs and on which ranks.
    """
    compare(what, tensor, gather_objects(description(tensor), group))


def description(tensor: torch.Tensor) -> tuple[tuple[int, ...], str, bool]:
    """What must be equal on all ranks: shape, dtype, and whether it is contiguous."""
    return tuple(tensor.shape), str(tensor.dtype), tensor.is_contiguous()


def compare(what: str, tensor: torch.Tensor, everyone: list[tuple[tuple[int, ...], str, bool]]) -> None:
    """Raise as `agree` does, for descriptions that have been gathered already (a mesh gathers them along its axes)."""
    for index, name in enumerate(("shape", "dtype")):
        seen: dict[Any, list[int]] = {}
        for rank, described in enumerate(everyone):
            seen.setdefault(described[index], []).append(rank)
        if len(seen) > 1:
            listed = ", ".join(f"{value} on rank {','.join(map(str, ranks))}" for value, ranks in seen.items())
            raise ValueError(f"{what}: the {name} of `tensor` differs between ranks: {listed}; bring the same on all")
    scattered = [rank for rank, described in enumerate(everyone) if not described[2]]
    if scattered:
        raise ValueError(
            f"{what}: `tensor` is not contiguous on rank {','.join(map(str, scattered))} (shape {tuple(tensor.shape)}, "
            f"strides {tensor.stride()} on this rank); send tensor.contiguous()"
        )


def contiguous(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor with gaps: gloo would send the wrong elements and overwrite the neighbours of the right ones.

    Raises:
        ValueError: The tensor is not contiguous.
    """
    if not tensor.is_contiguous():
        raise ValueError(
            f"{what}: `tensor` of shape {tuple(tensor.shape)} and strides {tensor.stride()} is not contiguous; "
            "send tensor.contiguous()"
        )
