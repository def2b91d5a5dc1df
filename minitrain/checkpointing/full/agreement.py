"""Agreement of ranks around a checkpoint: their shards make up the tensors, and all end alike.

Each part of a save or load ends with a message to all ranks: done, or what went wrong. Any error in a state is found
before anything is written or changed: each rank sends, once, every tensor's name, shape and dtype.

The checks are those that torch.distributed.checkpoint makes on rank 0, and more: the library raises an error that is
not an `Exception`, after it has made the folder, and names a tensor's volume but no remedy.
Also called collective error handling; consensus on failure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata

from minitrain.checkpointing.full.shards import ShardedTensor, State, check_shards
from minitrain.comm.control import gather_objects

T = TypeVar("T")


def same_on_all_ranks(action: Callable[[], T], group: dist.ProcessGroup | None) -> T:
    """The action's result on this rank; where it fails on any rank, an error of the same kind on every rank."""
    own: Exception | None = None
    try:
        result = action()
    except Exception as error:
        # Not raised yet: a rank that raises while others go on leaves them waiting.
        own = error
    outcomes = gather_objects(own and (family(own).__name__, str(own)), group)
    failed = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome}
    if not failed:
        return result  # type: ignore[possibly-undefined]
    texts = dict.fromkeys(text for _, text in failed.values())
    described = next(iter(texts)) if len(texts) == 1 else "; ".join(f"rank {r}: {t}" for r, (_, t) in failed.items())
    # Only kinds that can be made from a text alone, as not every exception can.
    kinds = {name for name, _ in failed.values()}
    kind = {"OSError": OSError, "ValueError": ValueError}.get(kinds.pop() if len(kinds) == 1 else "", RuntimeError)
    raise kind(described) from own


def family(error: Exception) -> type[Exception]:
    """The kind of error that all ranks raise for this one: OSError, ValueError, or else RuntimeError."""
    return next((kind for kind in (OSError, ValueError) if isinstance(error, kind)), RuntimeError)


def check_save(step: int, state: State, extra: dict[str, Any], keep: int, group: dist.ProcessGroup | None) -> None:
    """Raise on every rank the errors of any."""

    def described() -> tuple[str, dict[str, tuple[Any, ...]]]:
        # In here, since the values may be wrong on one rank only, and the others would wait for it.
        if step < 0 or keep < 1:
            raise ValueError(f"step={step} must be at least 0 and keep={keep} at least 1")
        check_shards(state)
        try:
            # As text, in which the order of keys makes no difference.
            text = json.dumps([step, extra], sort_keys=True)
        except TypeError as error:
            raise ValueError(f"extra={extra!r} is no JSON: {error}") from None
        tensors = {}
        for name, sharded in nonempty(state).items():
            written = sum(shard.tensor.numel() for shard in sharded.shards) if sharded.writes else 0
            tensors[name] = *_kind(sharded), written
        return text, tensors

    everyone = gather_objects(same_on_all_ranks(described, group), group)
    if len({text for text, _ in everyone}) > 1:
        raise ValueError(f"step={step}, extra={extra!r} differ between ranks; bring the same on all")
    tensors: dict[str, list[tuple[Any, ...]]] = {}
    for _, described_tensors in everyone:
        for name, about in described_tensors.items():
            tensors.setdefault(name, []).append(about)
    for name, held in tensors.items():
        if len({(shape, dtype) for shape, dtype, _ in held}) > 1:
            raise ValueError(f"{name}: shape and dtype differ between ranks: {sorted({about[:2] for about in held})}")
        # Their number is enough here: that no two regions overlap is checked by the library's plan.
        elements, written = math.prod(held[0][0]), sum(about[2] for about in held)
        if written != elements:
            raise ValueError(f"{name}: the ranks would write {written} elements of {elements}; write each of them once")


def _kind(sharded: ShardedTensor) -> tuple[tuple[int, ...], str]:
    return tuple(sharded.shape), str(sharded.dtype).removeprefix("torch.")


def nonempty(state: State) -> State:
    """Without empty tensors, of which no region is written."""
    return {name: sharded for name, sharded in state.items() if math.prod(sharded.shape)}


def another_model(state: State, metadata: Metadata, group: dist.ProcessGroup | None, kind: str = "") -> list[str]:
    """How the checkpoint's tensors whose names begin with `kind` differ from those that the ranks ask for."""
    saved = {
        name: (tuple(about.size), str(about.properties.dtype).removeprefix("torch."))  # type: ignore[union-attr]
        for name, about in metadata.state_dict_metadata.items()
        if name.startswith(kind)
    }
    held = {name: _kind(sharded) for name, sharded in nonempty(state).items()}
    # Of all ranks, since a pipeline's rank has some of the layers only.
    asked = {about for mine in gather_objects(held, group) for about in mine.items()}
    names = {name for name, _ in asked}
    problems = []
    for what, others in (("it lacks", names - saved.keys()), ("the run has no", saved.keys() - names)):
        # Four are enough to see which model it is.
        if others:
            listed = ", ".join(sorted(others)[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
            problems.append(f"{what} {listed}")
    for name, kind in sorted(asked):
        if saved.get(name, kind) != kind:
            problems.append(f"{name} is {saved[name]} in it and {kind} in the run")
    return problems
