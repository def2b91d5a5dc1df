"""The actions of a pipeline's ranks, their order, and the check that they can work.

**Idea.** A schedule is a list of actions for each rank, and nothing more. Times are not in it: a rank takes its next
action as soon as what the action needs has arrived. So one and the same object can be checked here, simulated, drawn,
and run on real ranks.

Open this file first, then `pipeline_parallel/full/simulator.py` (times) or `pipeline_parallel/full/mail.py` (ranks).

**Source.** The intermediate representation of torch.distributed.pipelining, whose notation `2F7` this is; backward in
two parts from Qi et al. 2023, "Zero Bubble Pipeline Parallelism", §1 and figure 1.
Also called pipeline order, action table, instruction stream (DeepSpeed's `PipeSchedule`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

Kind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """Something that one stage does with one micro-batch; written as `2F7`: stage 2, forward, micro-batch 7.

    Attributes:
        stage: Which stage, counted along the model from 0.
        kind: "F" forward; "B" the whole backward; or, in its place, "I" backward for the input (the gradient that the
            stage before is waiting for) and later "W" backward for the weights (for which no rank waits).
        microbatch: Which micro-batch, from 0.
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    __repr__ = __str__

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that `text` says, such as `2F7`."""
        found = re.fullmatch(r"(\d+)([FBIW])(\d+)", text)
        if not found:
            raise ValueError(f"text={text!r} is no action; write stage, F, B, I or W, and micro-batch, as in '2F7'")
        stage, kind, microbatch = found.groups()
        return cls(int(stage), next(known for known in get_args(Kind) if known == kind), int(microbatch))


Watch = Callable[[Action], AbstractContextManager[Any]]  # what `full/action_observers.py` makes


@dataclass(frozen=True)
class Schedule:
    """For each rank, its actions in one training step, in order.

    Attributes:
        name: Its name on the command line.
        microbatches: m, the micro-batches of a step.
        actions: For each rank its actions, in order.
        placement: For each stage the rank that holds it.
        versions: For each rank and each of its actions, the version of the stage's weights that the action uses: how
            many updates they have seen. Empty where weights change between steps only.
        every: Where there are versions, how many backwards of a stage make its next one.
    """

    name: str
    microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    placement: tuple[int, ...]
    versions: tuple[tuple[int, ...], ...] = ()
    every: int = 1

    @property
    def ranks(self) -> int:
        """p, the ranks of the pipeline."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """v · p, the parts into which the model is cut."""
        return len(self.placement)

    @property
    def chunks(self) -> int:
        """v, the stages that each rank holds."""
        return self.stages // self.ranks

    def rank_of(self, stage: int) -> int:
        """The rank that holds `stage`."""
        return self.placement[stage]

    def stages_of(self, rank: int) -> list[int]:
        """The stages that `rank` holds, rising: its chunks."""
        return [stage for stage, holder in enumerate(self.placement) if holder == rank]

    def backward(self, stage: int, microbatch: int) -> Action:
        """The action that makes the gradient of the stage's input: I where backward is in two parts, else B."""
        whole = Action(stage, "B", microbatch)
        return whole if whole in self._all else Action(stage, "I", microbatch)

    def needs(self, action: Action) -> list[Action]:
        """The actions that must precede `action`; if another rank does one, its result is a message.

        Forward needs the forward of the stage before. Backward for the input, alone or with the rest, needs the stage's
        own forward, and the gradient that the next stage makes. Backward for the weights needs that for the input.
        """
        stage, kind, microbatch = action
        if kind == "F":
            return [Action(stage - 1, "F", microbatch)] if stage > 0 else []
        if kind == "W":
            return [Action(stage, "I", microbatch)]
        own = Action(stage, "F", microbatch)
        # The last stage makes its own gradient, from the loss.
        return [own] if stage == self.stages - 1 else [own, self.backward(stage + 1, microbatch)]

    def version_of(self, action: Action) -> int:
        """The version of its stage's weights that `action` uses; 0 where weights change between steps only."""
        return self._versions.get(action, 0)

    @cached_property
    def _versions(self) -> dict[Action, int]:
        pairs = zip(self.actions, self.versions, strict=True) if self.versions else ()
        return {action: used for row, versions in pairs for action, used in zip(row, versions, strict=True)}

    @cached_property
    def _all(self) -> frozenset[Action]:
        # Made once: `backward` asks for it at every action, and a search through all lists would take quadratic time.
        return frozenset(action for actions in self.actions for action in actions)

    @cached_property
    def _in_turn(self) -> list[tuple[Action, list[Action]]]:
        # Kept, since the same schedule is timed with one cost after another.
        return [*_turns(self)]

    def __str__(self) -> str:
        """A line for each rank; `2F7@3` uses version 3 of the weights."""
        lines = []
        for rank, row in enumerate(self.actions):
            words = [f"{action}@{self.version_of(action)}" if self.versions else str(action) for action in row]
            lines.append(f"rank {rank}: {' '.join(words)}")
        return "\n".join(lines)


def validate(schedule: Schedule) -> None:
    """Check that each rank can do its actions in their order, and that together they are one training step.

    Raises:
        ValueError: Names the first action that does not exist, belongs to another rank, comes twice, is missing, comes
            before what it needs on the same rank, or waits forever for another rank; or that uses a version of the
            weights that does not exist yet.
    """
    _check_versions(schedule)
    in_turn(schedule)


def in_turn(schedule: Schedule) -> list[tuple[Action, list[Action]]]:
    """All actions, each with what it needs, in an order in which one after another could be done.

    Each rank goes on until its next action needs something that has not arrived. Sending never blocks, receiving does.

    Raises:
        ValueError: As `validate`.
    """
    return schedule._in_turn


def _turns(schedule: Schedule) -> Iterator[tuple[Action, list[Action]]]:
    _check_each(schedule)
    _check_all_there(schedule)
    done: set[Action] = set()
    # Reversed, so that the next action is at the end, where a list is shortened without moving the rest.
    left = {rank: list(reversed(actions)) for rank, actions in enumerate(schedule.actions)}
    while any(left.values()):
        before = len(done)
        for actions in left.values():
            # As far as this rank gets by itself: in any such order the same actions become possible.
            while actions and done.issuperset(needs := schedule.needs(actions[-1])):
                action = actions.pop()
                done.add(action)
                yield action, needs
        # In a whole round no rank could act, so all of them would wait forever.
        if len(done) == before:
            raise ValueError(_who_waits(schedule, left, done))


def _who_waits(schedule: Schedule, left: dict[int, list[Action]], done: set[Action]) -> str:
    lines = []
    for rank, actions in left.items():
        if actions:
            action = actions[-1]
            missing = next(need for need in schedule.needs(action) if need not in done)
            other = schedule.rank_of(missing.stage)
            # A rank that waits for itself is no deadlock between ranks, but an error in its own order.
            if other == rank:
                where = _place(schedule, rank, len(schedule.actions[rank]) - len(actions))
                return f"{where} comes before {missing}, which it needs"
            lines.append(f"rank {rank} cannot do {action} before rank {other} does {missing}")
    return f"{schedule.name}: deadlock: {'; '.join(lines)}"


def _place(schedule: Schedule, rank: int, place: int) -> str:
    return f"{schedule.name}: rank {rank}, action {place}: {schedule.actions[rank][place]}"


def _check_each(schedule: Schedule) -> None:
    seen: set[Action] = set()
    for rank, actions in enumerate(schedule.actions):
        if len(schedule.stages_of(rank)) != schedule.chunks or not actions:
            raise ValueError(
                f"{schedule.name}: rank {rank} holds stages {schedule.stages_of(rank)} and has {len(actions)} actions; "
                f"give each of {schedule.ranks} ranks equally many of the {schedule.stages} stages, and something to do"
            )
        for place, action in enumerate(actions):
            where = _place(schedule, rank, place)
            if not (0 <= action.stage < schedule.stages and 0 <= action.microbatch < schedule.microbatches):
                there = f"stages 0 to {schedule.stages - 1} and micro-batches 0 to {schedule.microbatches - 1}"
                raise ValueError(f"{where} does not exist; there are {there}")
            if schedule.rank_of(action.stage) != rank:
                raise ValueError(f"{where} belongs to rank {schedule.rank_of(action.stage)}, which holds that stage")
            if action in seen:
                raise ValueError(f"{where} comes twice")
            seen.add(action)


def _check_all_there(schedule: Schedule) -> None:
    there = schedule._all
    for stage in range(schedule.stages):
        for microbatch in range(schedule.microbatches):
            forward, whole, inputs, weights = (Action(stage, kind, microbatch) for kind in get_args(Kind))
            if forward not in there:
                raise ValueError(f"{schedule.name}: {forward} is missing on rank {schedule.rank_of(stage)}")
            parts = [part for part in (inputs, weights) if part in there]
            if whole in there and parts:
                raise ValueError(f"{schedule.name}: {parts[0]} is a part of {whole}, which is there too; leave out one")
            if whole not in there and len(parts) < 2:
                half = weights if parts == [inputs] else inputs
                missing = str(half) if parts else f"{whole}, or {inputs} and {weights},"
                raise ValueError(f"{schedule.name}: {missing} is missing on rank {schedule.rank_of(stage)}")


def _check_versions(schedule: Schedule) -> None:
    if not schedule.versions:
        return
    sizes = [len(row) for row in schedule.actions]
    # One stage per rank, because updates are counted per rank here.
    if [len(row) for row in schedule.versions] != sizes or schedule.every < 1 or schedule.chunks != 1:
        raise ValueError(
            f"{schedule.name}: versions are for {[len(row) for row in schedule.versions]} actions, with "
            f"every={schedule.every} and {schedule.chunks} stages per rank; give one for each of {sizes} actions, "
            "every from 1 on, and one stage per rank"
        )
    for rank, (row, versions) in enumerate(zip(schedule.actions, schedule.versions, strict=True)):
        backwards = 0
        for place, (action, version) in enumerate(zip(row, versions, strict=True)):
            if not 0 <= version <= backwards // schedule.every:
                newest = backwards // schedule.every
                raise ValueError(
                    f"{_place(schedule, rank, place)} uses version {version}, but the newest is {newest} after "
                    f"{backwards} backwards"
                )
            # After the check: an action cannot use the update to which its own backward leads.
            backwards += action.kind == "B"
