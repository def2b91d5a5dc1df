"""Weights that several stages hold: their gradients are summed over the stages before any other use.

**Idea.** A GPT's head uses the weight of its token embedding. In a pipeline, the last and the first stage each have a
copy of it, which gets the gradient of its own use only. So after the last backward the holders send each other their
gradients and add them up. Copies that start equal, and always get equal gradients, stay equal.

**Source.** Press & Wolf 2017 for tied weights; Narayanan et al. 2021, §2.2.
**Sent.** Once per step each holder sends its gradient to every other holder, before data parallelism averages gradients
and before their norm is taken, in which the weight counts once.
**Cost.** Each way vocabulary · hidden elements for a tied embedding, and a copy of all its states on each holder.
Also called `TiedLayerSpec` (DeepSpeed), the embedding group (Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from minitrain.comm.control import gather_objects
from minitrain.comm.messages import exchange
from minitrain.pipeline_parallel.full.actions import Schedule


class Tie(NamedTuple):
    """A parameter held by several stages, rising, and its name within each."""

    stages: tuple[int, ...]
    names: tuple[str, ...]


def ties(stages: Sequence[nn.Module]) -> list[Tie]:
    """The parameters held by more than one of a model's stages; call it before a rank drops the other stages."""
    holders: dict[nn.Parameter, dict[int, str]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            holders.setdefault(parameter, {})[number] = name
    return [Tie(tuple(where), tuple(where.values())) for where in holders.values() if len(where) > 1]


def copies(tie: Tie, stages: Mapping[int, nn.Module]) -> list[nn.Parameter]:
    """The copies in these stages, in their order and each once: two stages may hold the very same parameter."""
    named = zip(tie.stages, tie.names, strict=True)
    return list(dict.fromkeys(stages[stage].get_parameter(name) for stage, name in named if stage in stages))


def check_equal(ties: Iterable[Tie], stages: Mapping[int, nn.Module], group: dist.ProcessGroup | None) -> None:
    """Check that all copies look alike and start equal, as far as their sums tell.

    Raises:
        ValueError: On every rank alike.
    """
    for tie in ties:
        mine = [
            # The sum in place of all elements, and in float64, where a small difference is not rounded away.
            (tuple(copy.shape), str(copy.dtype), copy.requires_grad, copy.detach().double().sum().item())
            for copy in copies(tie, stages)
        ]
        found = {one for theirs in gather_objects(mine, group) for one in theirs}
        if len(found) > 1:
            where = ", ".join(f"{name} of stage {stage}" for stage, name in zip(*tie, strict=True))
            raise ValueError(
                f"ties: {where} are copies of one parameter, but shape, dtype, requires_grad or sum of elements "
                f"differ: {sorted(map(str, found))}; make all stages from one seed"
            )


def set_aside(ties: Iterable[Tie], stages: Mapping[int, nn.Module]) -> dict[nn.Parameter, Tensor]:
    """Take away the gradients of all copies before a step: sums of earlier steps, which must not be sent again."""
    aside = {}
    for copy in (copy for tie in ties for copy in copies(tie, stages)):
        if copy.grad is not None:
            aside[copy], copy.grad = copy.grad, None
    return aside


@torch.no_grad()
def sum_gradients(
    ties: Iterable[Tie],
    stages: Mapping[int, nn.Module],
    aside: Mapping[nn.Parameter, Tensor],
    schedule: Schedule,
    group: dist.ProcessGroup | None,
) -> None:
    """Give every copy the sum of all copies' gradients, and add again what `set_aside` took of this rank's stages."""
    for tie in ties:
        held = copies(tie, stages)
        if not held or not held[0].requires_grad:
            continue
        rank = schedule.rank_of(next(stage for stage in tie.stages if stage in stages))
        own = _gradient(held[0])
        for copy in held[1:]:
            own = own + _gradient(copy)
        by_rank = {rank: own.contiguous()}
        holders = list(dict.fromkeys(map(schedule.rank_of, tie.stages)))
        for pair in combinations(holders, 2):  # all ranks go through the pairs in one order, so none waits in a circle
            if rank in pair:
                peer = pair[1] if rank == pair[0] else pair[0]
                by_rank[peer] = torch.empty_like(by_rank[rank])
                # To and from the other holder: the gradient of its own use of the weight.
                # Between two holders as many bytes as an all-reduce, which would need a group of its own.
                exchange(by_rank[rank], peer, by_rank[peer], peer, group).wait()
        # In the order of stages on every rank: the same bits, so that the copies stay equal.
        total = by_rank[holders[0]]
        for holder in holders[1:]:
            total = total + by_rank[holder]
        for copy in held:
            # Into the existing memory: a line of ZeRO's has a place for it, and otherwise it would be held twice.
            # Else a clone for each, because clipping scales gradients in place.
            copy.grad = aside[copy].add_(total) if copy in aside else total.clone()


def _gradient(copy: nn.Parameter) -> Shaped[Tensor, "*shape"]:
    return torch.zeros_like(copy) if copy.grad is None else copy.grad
