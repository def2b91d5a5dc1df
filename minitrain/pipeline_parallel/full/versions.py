"""Versions of the weights in a schedule without a flush: how many are kept, and how old the gradients are.

**Idea.** A schedule says which version of its stage's weights each action uses. Everything else can be read off: a
version is kept from the update that makes it to the last action that uses it, and the latest one always. The staleness
of an update is the number of updates between the weights of its gradient and the weights that it changes.

**Source.** Narayanan et al. 2019, "PipeDream", §3.3, where the words are weight stashing, vertical sync and staleness.
"""

from __future__ import annotations

from minitrain.pipeline_parallel.full.actions import Action, Schedule


def kept(schedule: Schedule, rank: int) -> int:
    """The most versions of its weights that `rank` keeps at once, the latest included."""
    pairs = _pairs(schedule, rank)
    last_use = {version: place for place, (_, version) in enumerate(pairs)}  # later ones overwrite earlier ones
    most, backwards = 1, 0
    for place, (action, _) in enumerate(pairs):
        latest = backwards // schedule.every
        # The latest is kept anyway, for the actions to come.
        needed = [version for version in range(latest) if last_use.get(version, -1) >= place]
        most = max(most, len(needed) + 1)
        backwards += action.kind == "B"
    return most


def staleness(schedule: Schedule, rank: int) -> list[int]:
    """For each backward of `rank`, how many updates older its weights are than those that its gradient updates."""
    backwards = [version for action, version in _pairs(schedule, rank) if action.kind == "B"]
    return [number // schedule.every - version for number, version in enumerate(backwards)]


def mixed(schedule: Schedule) -> list[Action]:
    """The backwards that use another version than their forward: their gradient is that of no function."""
    return [
        action
        for rank in range(schedule.ranks)
        for action, version in _pairs(schedule, rank)
        if action.kind == "B" and version != schedule.version_of(action._replace(kind="F"))
    ]


def _pairs(schedule: Schedule, rank: int) -> list[tuple[Action, int]]:
    return list(zip(schedule.actions[rank], schedule.versions[rank], strict=True))
