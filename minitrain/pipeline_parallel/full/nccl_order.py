"""The order in which a rank posts its sends and receives, so that both ends agree and no rank waits forever.

**Between two ranks** messages carry no name: the first sent is the first received. So the receives from one rank are
posted in the order in which that rank acts, whichever is needed first, and micro-batches cannot be mixed up.

**Between different ranks** gloo allows any order. NCCL carries the messages of a rank one after another, sent and
received alike, so with NCCL all ranks keep one common order: the order in which the messages would be made if F, I and
W all took equally long.

**No deadlock.** Take the earliest message in this order that has not arrived. Everything its sender and receiver must
do first depends only on earlier messages, which have arrived; so it can be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from minitrain.pipeline_parallel.full.actions import Action, Schedule
from minitrain.pipeline_parallel.full.simulator import simulate


class Message(NamedTuple):
    """What rank `source` sends to rank `to`: `made` by an action of the one, `needed` by an action of the other."""

    made: Action
    needed: Action
    source: int
    to: int


def in_common_order(schedule: Schedule) -> list[Message]:
    """All messages of a step, in the order in which they would be made if F, I and W all took equally long."""
    # With equal costs, so that every rank finds the same order by itself.
    ends = {slot.action: slot.end for row in simulate(schedule, 1, 1, 1).slots for slot in row}
    pairs = [(need, action) for action in ends for need in schedule.needs(action)]
    messages = [Message(*pair, *(schedule.rank_of(action.stage) for action in pair)) for pair in pairs]
    crossing = [message for message in messages if message.source != message.to]
    # The message itself decides between equal times, since two ranks must not decide differently.
    return sorted(crossing, key=lambda message: (ends[message.made], message))


class Unposted:
    """The messages of a rank and a step that are not posted yet, as queues: one for all if `one_order`, as NCCL needs,
    else one for each sender. `messages` are in the common order."""

    def __init__(self, messages: Sequence[Message], rank: int, one_order: bool):
        self._rank, self._one_order = rank, one_order
        self._queues: dict[int | None, list[Message]] = {}
        for message in messages:
            self._queues.setdefault(self._key(message), []).append(message)

    def take_until(self, message: Message) -> list[Message]:
        """Take all up to `message` out of its queue; returns the receives among them, which must be posted now."""
        queue = self._queues[self._key(message)]
        count = queue.index(message) + 1
        taken, queue[:count] = queue[:count], []
        # Sends before `message` were made by earlier actions of this rank, and have been posted then.
        return [one for one in taken if one.to == self._rank]

    def may_post(self, message: Message, shapes_known: Callable[[Message], bool]) -> bool:
        """Whether all receives up to this one can be posted without waiting for an announcement, or for a send."""
        queue = self._queues[self._key(message)]
        return all(one.to == self._rank and shapes_known(one) for one in queue[: queue.index(message) + 1])

    def _key(self, message: Message) -> int | None:
        return None if self._one_order else message.source
