"""The checks on each communication: before it starts, that it is valid; while it is under way, that it will end.

These are observers (`Communication.observers`). `check_message` sees every message. `check_together` compares what
ranks bring and guards memory in flight; it is active where a world is checked, as in demos and notebooks.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from minitrain.comm.control import agree, contiguous, differing, gather_objects, name_of
from minitrain.comm.groups import backend
from minitrain.watch.board import Board, BoardLost
from minitrain.watch.in_flight import Flights
from minitrain.watch.observers import Communication, Watch
from minitrain.watch.sites import site


def check_message(message: Communication) -> None:
    """Refuse a message to or from no other rank, and a tensor whose memory does not hold its values side by side."""
    if message.peer is None:
        return
    verb, peer = message.verb, message.peer
    size, rank = dist.get_world_size(message.group), dist.get_rank(message.group)
    if rank < 0:
        raise ValueError(f"{verb}: this rank ({dist.get_rank()}) is not in the group; only its members may call")
    if not 0 <= peer < size or peer == rank:
        name = "to" if verb == "send" else "source"
        raise ValueError(
            f"{verb}: {name}={peer} is no other rank of this group of {size} (this is rank {rank}); "
            + (f"use one of 0 to {size - 1} but {rank}" if size > 1 else "start more ranks")
        )
    contiguous(verb, message.tensor)


def check_together(communication: Communication) -> Watch | None:
    """Compare what the ranks bring, and guard the memory until the communication has been waited for.

    Raises:
        ValueError: The ranks do not fit together, or this one brings what cannot be sent.
        RuntimeError: They will never meet, or the memory is already in flight.
    """
    board = Board.current
    if board is None or dist.get_rank(communication.group) < 0:
        return None
    what = f"{described(communication)} ({site().line})"
    if communication.peer is None:
        if not communication.compared:
            _check_collective(communication)
        return Flights(communication, what)
    with suppress(BoardLost):
        # An empty tensor is not sent, and so a verb may leave out its receive.
        return _Announced(board, communication, what) if communication.tensor.numel() else None
    return None


def described(communication: Communication) -> str:
    """A communication in words: "send(to=1)"."""
    if communication.peer is None:
        return communication.verb
    return f"{communication.verb}({'to' if communication.verb == 'send' else 'source'}={communication.peer})"


class Mismatch(ValueError):
    """A message and the memory that waits for it have other shapes or dtypes."""

    pending = True  # the other rank's part of it may have been started


class _Announced(Flights):
    """A message that both ends announce on the board: shape and dtype, and that they have arrived.

    The rank that arrives second reads the first one's announcement, and starts nothing if the two do not match; the
    first reads the second's while it waits. As both announce before they look, one of them is always second.
    """

    def __init__(self, board: Board, message: Communication, what: str):
        assert message.peer is not None
        self.board, self.message, self.what = board, message, what
        ranks = dist.get_process_group_ranks(message.group)
        me, self.other = dist.get_rank(), ranks[message.peer]
        source, to = (me, self.other) if message.verb == "send" else (self.other, me)
        tag = 0 if backend(message.group) == "nccl" else message.tag
        mine, theirs = ("sent", "wanted") if message.verb == "send" else ("wanted", "sent")
        name = f"{name_of(message.group)}/{source}>{to}/{tag}"
        number = _number(f"{name}/{mine}")
        self.theirs = f"{name}/{number}/{theirs}"
        board.note(f"{name}/{number}/{mine}", [list(message.tensor.shape), str(message.tensor.dtype), what])
        self.compared = self.compare(board.read(self.theirs))
        super().__init__(message, what)

    def waits(self) -> None:
        super().waits()
        with suppress(BoardLost):
            if not self.compared:
                came = self.board.wait({self.theirs: self.other}, described(self.message))
                self.compared = came is not None and self.compare(came[0])

    def compare(self, announced: list[Any] | None) -> bool:
        """Whether the other end has announced its part; raises if that has another shape or dtype."""
        if announced is None:
            return False
        self.board.remove(self.theirs)
        shape, dtype, there = announced
        mine = self.message.tensor
        if [list(mine.shape), str(mine.dtype)] == [shape, dtype]:
            return True
        both = ("is sent", "is to be received")
        here, elsewhere = both if self.message.verb == "send" else both[::-1]
        raise Mismatch(
            f"{described(self.message)}: what {here} on rank {dist.get_rank()} has shape {list(mine.shape)} and "
            f"{mine.dtype}, but what {elsewhere} on rank {self.other} in {there} has shape {list(shape)} and {dtype}; "
            "both ends must have the same shape and dtype"
        )


_lock = threading.Lock()
_numbers: Counter[str] = Counter()


def _number(name: str) -> int:
    """How many messages of this kind this rank has announced before."""
    with _lock:
        _numbers[name] += 1
        return _numbers[name]


def forget() -> None:
    """Restart the counts, when the process groups are destroyed."""
    _numbers.clear()


def _check_collective(collective: Communication) -> None:
    """Compare what the ranks of a collective bring; a ValueError on every rank alike."""
    tensor, group = collective.tensor, collective.group
    if collective.sizes is None:
        agree(collective.verb, tensor, group)
        return
    leaving, arriving = (list(map(int, sizes)) for sizes in collective.sizes)
    mine = (tuple(tensor.shape[1:]), str(tensor.dtype), tuple(leaving), tuple(arriving))
    everyone: list[Any] = gather_objects(mine, group, collective.verb)
    if differ := differing([f"{list(row)} of {dtype}" for row, dtype, _, _ in everyone]):
        raise ValueError(f"{collective.verb}: the rows differ between ranks: {differ}; bring the same on all")
    for source, (_, _, sent, _) in enumerate(everyone):
        for to, (_, _, _, taken) in enumerate(everyone):
            if sent[to] != taken[source]:
                raise ValueError(
                    f"{collective.verb}: rank {source} sends rank {to} {sent[to]} of its rows, and that rank expects "
                    f"{taken[source]} from it; `leaving` there and `arriving` here must be the same number"
                )
