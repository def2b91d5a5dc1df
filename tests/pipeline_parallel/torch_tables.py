"""The schedules of torch.distributed.pipelining as ours: its tables of actions, which we run and compare."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch.distributed.pipelining.schedules as torch_schedules

from minitrain.pipeline_parallel.full.actions import Action, Schedule


def from_torch(name: str, ranks: int, microbatches: int, chunks: int) -> Schedule | None:
    """A table of torch's, without idle slots; where a forward and a backward overlap, the forward comes first.

    None where torch has no table for these sizes.
    """
    kind: Any = torch_schedules.get_schedule_class(name)
    # Until its first step torch's schedule looks at no more of its stages than this.
    stage = SimpleNamespace(group_size=ranks, num_stages=ranks * chunks, group_rank=0, is_last=False, submod=None)
    single = issubclass(kind, torch_schedules.PipelineScheduleSingle)
    try:
        order = kind(stage if single else [stage] * chunks, microbatches).pipeline_order
    except ValueError:
        return None
    rows = []
    for rank in range(ranks):
        real = [action for action in order[rank] if action is not None]
        parts = [part for action in real for part in action.sub_actions or (action,)]
        rows.append(tuple(Action.parse(str(part)) for part in parts if part.computation_type.value != "REDUCE_GRAD"))
    holders = {action.stage: rank for rank, row in enumerate(rows) for action in row}
    return Schedule(name, microbatches, tuple(rows), tuple(holders[stage] for stage in range(ranks * chunks)))
