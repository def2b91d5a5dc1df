"""Checks: all ranks use the same schedule, and every stage takes and returns tensors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from minitrain.comm.control import checking, gather_objects
from minitrain.pipeline_parallel.full.actions import Schedule, validate
from minitrain.pipeline_parallel.full.shapes import metas


def agree(schedule: Schedule, stages: int, has_loss: bool, group: dist.ProcessGroup | None) -> None:
    """Check a rank's arguments for a schedule, and that all ranks bring the same schedule.

    Raises:
        ValueError: On every rank alike, whatever is wrong on any.
    """
    # Told and not raised, since the other ranks would then wait for this one.
    problem = _problem(schedule, stages, has_loss, dist.get_rank(group), dist.get_world_size(group))
    # A checksum of the text: Python's own `hash` of a text differs between processes.
    everyone = gather_objects((problem, schedule.name, zlib.crc32(str(schedule).encode())), group)
    for rank, (theirs, _, _) in enumerate(everyone):
        if theirs:
            raise ValueError(f"{theirs} (rank {rank})")
    if len({theirs[1:] for theirs in everyone}) > 1:
        named = ", ".join(f"{name} on rank {rank}" for rank, (_, name, _) in enumerate(everyone))
        raise ValueError(f"schedule differs between ranks: {named}; bring the same, with the same micro-batches")


def _problem(schedule: Schedule, stages: int, has_loss: bool, rank: int, size: int) -> str:
    if schedule.ranks != size:
        return f"schedule={schedule.name} is for {schedule.ranks} ranks, but the group has {size}; make it for {size}"
    try:
        validate(schedule)
    except ValueError as error:
        return str(error)
    if schedule.versions:
        return f"schedule={schedule.name} changes the weights between its actions; a Pipeline runs those of SCHEDULES"
    mine = schedule.stages_of(rank)
    if stages != len(mine):
        return f"stages are {stages}, but this rank holds the stages {mine} of {schedule.name}; bring {len(mine)}"
    if schedule.stages - 1 in mine and not has_loss:
        return "loss=None, but this rank holds the last stage; give the function that makes its outputs a loss"
    return ""


def lengths(count: int, group: dist.ProcessGroup | None, **given: tuple[Sequence[Any] | None, bool]) -> None:
    """Check that there is one of each argument for each of `count` micro-batches, where this rank needs it.

    Raises:
        ValueError: On every rank alike, where ranks are compared; else on the rank concerned.
    """
    problem = ""
    for name, (values, needed) in given.items():
        if needed and (values is None or len(values) != count):
            there = "missing" if values is None else str(len(values))
            problem = f"{name} are {there} on rank {dist.get_rank(group)}, but the schedule has {count} micro-batches"
            problem += "; bring one for each"
    # A message in every step, so only in demos and with torch's debug level.
    problems = gather_objects(problem, group) if checking(None) else [problem]
    if any(problems):
        raise ValueError(next(filter(None, problems)))


def is_data_parallel(stage: nn.Module) -> bool:
    """Whether a stage has a data-parallel training step: `no_sync` and `synchronize`."""
    return hasattr(stage, "no_sync") and hasattr(stage, "synchronize")


def outputs_of(stage: int, microbatch: int, value: Any) -> tuple[Tensor, ...]:
    """What a stage returned, as a tuple of tensors, or a ValueError if it is something else."""
    tensors = value if isinstance(value, tuple) else (value,)
    wrong = [type(one).__name__ for one in tensors if not isinstance(one, Tensor)]
    if wrong or not tensors:
        raise ValueError(
            f"stage {stage} returned {wrong[0] if wrong else 'an empty tuple'} for micro-batch {microbatch}; "
            "return a tensor, or a tuple of tensors, which the next stage takes as arguments"
        )
    return tensors


def inputs_of(number: int, value: Any) -> tuple[Tensor, ...]:
    """A micro-batch, as a tuple of tensors, or a ValueError if it is something else."""
    tensors = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(one, Tensor) for one in tensors):
        raise ValueError(f"inputs[{number}] is a {type(value).__name__}; bring a tensor, or a tuple of tensors")
    return tensors


def kinds(microbatches: Sequence[tuple[Tensor, ...]]) -> list[int]:
    """For each micro-batch the number of the first one with the same shapes, dtypes and `requires_grad`."""
    first: dict[tuple, int] = {}
    # `requires_grad` as well: it decides whether a gradient goes back.
    return [first.setdefault(tuple(metas(tensors)), number) for number, tensors in enumerate(microbatches)]
