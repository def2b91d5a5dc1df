"""What observers of a communication are told: that it is about to start, that this rank waits for it, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class Communication:
    """What observers are told before a communication starts."""

    verb: str  # "send", "receive", "all_reduce", …
    tensor: Tensor  # what this rank brings; of a receive, where it arrives
    group: ProcessGroup | None = None  # the ranks that talk; None means everyone
    peer: int | None = None  # the other rank of a message, within the group; None for a collective
    tag: int = 0  # of a message
    into: Tensor | None = None  # where the result of a collective arrives, if not in `tensor`
    # Of an all_to_all, how many rows leave for each rank, and how many arrive from each.
    sizes: tuple[Sequence[int], Sequence[int]] | None = None
    compared: bool = False  # of a collective, whether the ranks have already compared what they bring
    ahead: bool = False  # of a receive, whether its memory may be used until the sender has heard from this rank
    # Instruments and checks, called with each communication before it starts. They may return a `Watch`. Kept with the
    # class, since autograd's threads must find them, too.
    observers: ClassVar[list[Callable[[Communication], Watch | None]]] = []


class Watch:
    """What an observer of a communication does later: nothing, unless a subclass says otherwise."""

    def waits(self) -> None:
        """This rank begins to wait for the communication."""

    def ends(self) -> None:
        """It has been waited for."""


def observe(*communications: Communication) -> list[Watch]:
    """Tell the observers of communications that are about to start; returns what they want to be told later."""
    return [
        watch
        for communication in communications
        for observer in Communication.observers
        if (watch := observer(communication)) is not None
    ]


class Work:
    """torch's handle of a communication that is observed; it may be waited for twice."""

    def __init__(self, work: Any, watches: Iterable[Watch]):
        self._work, self._watches, self._done = work, list(watches), False

    def wait(self, *timeout: Any) -> bool:
        """Wait, and tell those who watch."""
        for watch in self._watches:
            watch.waits()
        if not self._done:  # a message of gloo's hangs if it is waited for twice
            self._work.wait(*timeout)
        self._done = True
        while self._watches:
            self._watches.pop(0).ends()
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)
