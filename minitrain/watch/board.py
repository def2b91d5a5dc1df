"""The board: notes that all ranks of a checked world can read, so that a rank soon notices that it waits in vain.

A rank that waits inside gloo or NCCL cannot look around. So where ranks are checked, it first waits here, until the
others have noted that they have arrived. After a moment it also notes what it is waiting for. From these notes
each rank can tell by itself whether the ranks that it waits for will ever arrive: they will not if they have ended or
wait in vain themselves.

The board is one of torch's stores. Rank 0 keeps it; when that rank dies, the others go on unchecked. Any user of the
machine can write to such a store, so notes are JSON, which can hold no code, and sealed (seal.py): a note that no rank
of this run has written counts as absent. Another user can still overwrite or remove notes; then the ranks go on to
their time limit.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from minitrain.comm.seal import Foreign, Seal
from minitrain.watch.sites import site

SLICE = timedelta(seconds=0.25)  # between two looks at what the others wait for
CERTAIN = 1.75  # seconds for which the notes must say the same
LOOPBACK = "127.0.0.1"


class BoardLost(RuntimeError):
    """Rank 0, which keeps the board, is gone. The others go on unchecked."""


class Deadlock(RuntimeError):
    """The ranks for which this one waits will never arrive: they have ended, or wait in vain themselves."""

    pending = True  # a communication was started that cannot end, so these ranks are no longer usable


@dataclass(frozen=True)
class Waiting:
    """The note of a rank that waits."""

    call: int  # the call of the program that it belongs to: notes from earlier calls mean nothing
    doing: str  # the communication it waits in: "receive(source=1)"
    place: str  # the line of the reader's code
    needs: dict[str, int]  # the notes that must appear, and the rank that must write each
    alone: bool  # whether no other thread of this rank communicates; if one does, it may still bring what others need


class Board:
    """This rank's view of the board at `address`; a wait longer than `limit` is an error in any case."""

    current: Board | None = None  # that of this process, where its ranks are checked

    def __init__(self, address: tuple[str, int], rank: int, size: int, limit: timedelta, seal: Seal):
        self.address, self.rank, self.size, self.limit, self._seal = address, rank, size, limit, seal
        self.call, self.absent = 0, frozenset[int]()
        self._threads: set[threading.Thread] = set()
        self._mine = threading.local()

    @staticmethod
    def keep(one_machine: bool) -> tuple[Any, tuple[str, int]]:
        """Open a board, on rank 0; returns it, and where it is to be found.

        With all ranks on one machine, nothing listens to the outside. Otherwise it listens on the one address at which
        the ranks meet; an OSError if that is not this machine's.
        """
        host = LOOPBACK if one_machine else os.environ["MASTER_ADDR"]
        family, _, _, _, (host, *_) = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server((host, 0), family=family)
        address = (str(host), listener.getsockname()[1])
        board = dist.TCPStore(*address, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        return board, address

    def begin(self, call: int, ranks: Iterable[int]) -> None:
        """A new call of the program begins on these ranks; the others are idle."""
        self.call, self.absent = call, frozenset(range(self.size)) - frozenset(ranks)
        self._threads = {threading.current_thread()}

    def end(self) -> None:
        """This rank's part of the call has come to its end; no communication of it will start any more."""
        self.note(f"ended/{self.rank}", self.call)

    def note(self, key: str, value: Any = True) -> None:
        """Put a note up: anything that JSON can hold, except None."""
        self._do("set", key, self._seal.close(key, json.dumps(value).encode()))

    def read(self, key: str) -> Any:
        """A note that a rank of this run has put up; None if there is none."""
        notes = self._read([key]) if self._do("check", [key]) else None
        return notes[0] if notes else None

    def has(self, key: str) -> bool:
        """Whether a rank of this run has put up a note."""
        return self.read(key) is not None

    def remove(self, key: str) -> None:
        """Take a note down."""
        self._do("delete_key", key)

    def wait(self, needs: Mapping[str, int], doing: str) -> list[Any] | None:
        """Wait until all these notes have been put up, each by its rank.

        Returns:
            The notes; None if a rank from which one must come has died.

        Raises:
            Deadlock: They will never come, as the notes of all ranks show; or the time limit has passed.
        """
        start = time.monotonic()
        found, since = "", start
        while (notes := self._read(list(needs))) is None:
            missing = {key: rank for key, rank in needs.items() if not self.has(key)}
            if any(self._dead(rank) for rank in missing.values()):
                break  # gloo or NCCL will say so: the connection is gone
            note = Waiting(self.call, doing, site().line, missing, self._alone())
            self.note(f"waits/{self.rank}", asdict(note))
            now = time.monotonic()
            before, found = found, self._in_vain()
            if found != before:
                since = now
            verdict = f"deadlock/{self.call}"
            if found and (now - since > CERTAIN or self.read(verdict) == found):
                self.note(verdict, found)  # so that all of them say it at once
                raise Deadlock(found)
            if now - start > self.limit.total_seconds():
                others = ", ".join(f"rank {rank}" for rank in sorted(set(missing.values())))
                raise Deadlock(f"{doing}: nothing came from {others} for {self.limit.total_seconds():g} s")
        if time.monotonic() - start > SLICE.total_seconds():
            self.note(f"waits/{self.rank}", False)  # emptied, not removed: another rank may be about to read it
        return notes

    def introduce(self) -> None:
        """Tell the others which process this is, so that those on the same machine see when it dies."""
        self.note(f"process/{self.rank}", [socket.gethostname(), os.getpid()])

    @property
    def _store(self) -> Any:
        """A connection of this thread's own: a store serves one caller at a time, and may let it wait."""
        self._threads.add(threading.current_thread())
        if not hasattr(self._mine, "store"):
            self._mine.store = dist.TCPStore(*self.address, is_master=False, wait_for_workers=False)
            self._mine.store.set_timeout(SLICE)
        return self._mine.store

    def _do(self, operation: str, *args: Any) -> Any:
        try:
            return getattr(self._store, operation)(*args)
        except dist.DistNetworkError as error:
            Board.current = None
            raise BoardLost("rank 0, which keeps the board, is gone") from error

    def _read(self, keys: list[str]) -> list[Any] | None:
        """These notes; None if one of them is not put up within a moment, or by no rank of this run."""
        try:
            found = self._do("multi_get", keys)
            return [json.loads(self._seal.open(key, note)) for key, note in zip(keys, found, strict=True)]
        except (dist.DistStoreError, Foreign):
            return None

    def _alone(self) -> bool:
        return not any(thread.is_alive() and thread is not threading.current_thread() for thread in self._threads)

    def _dead(self, rank: int) -> bool:
        host, process = self.read(f"process/{rank}") or ("", 0)
        if host != socket.gethostname():
            return False
        try:
            os.kill(process, 0)
            return ") Z " in Path(f"/proc/{process}/stat").read_text()  # ended, but its parent has not noticed yet
        except ProcessLookupError:
            return True
        except OSError:  # another system than Linux, or another user's process
            return False

    def _in_vain(self) -> str:
        """Why this rank waits forever, in words; "" while another rank may still arrive."""
        waiting = {rank: note for rank in range(self.size) if (note := self._waiting(rank)) is not None}
        ended = {rank for rank in range(self.size) if rank in self.absent or self.read(f"ended/{rank}") == self.call}
        free = set(range(self.size)) - waiting.keys() - ended
        while more := {rank for rank, note in waiting.items() if free.issuperset(note.needs.values())} - free:
            free |= more
        if self.rank in free:
            return ""
        stuck = {rank: note for rank, note in waiting.items() if rank not in free}
        return in_words(stuck, {rank for note in stuck.values() for rank in note.needs.values()} & ended)

    def _waiting(self, rank: int) -> Waiting | None:
        """What a rank waits for in this call, if it waits and none of it has arrived since it wrote the note."""
        found = self.read(f"waits/{rank}")
        note = Waiting(**found) if found else None
        if note is None or note.call != self.call or not note.alone or any(self.has(key) for key in note.needs):
            return None
        return note


def in_words(stuck: Mapping[int, Waiting], ended: set[int]) -> str:
    """Which ranks wait forever, and what to do about it; `ended` are those for which they wait that have ended."""
    lines = ["these ranks wait forever:"]
    for rank, note in sorted(stuck.items()):
        others = " and ".join(f"rank {other}" for other in sorted(set(note.needs.values())))
        lines.append(f"  rank {rank} in {note.doing} ({note.place}), for {others}")
    verbs = {note.doing.partition("(")[0] for note in stuck.values()}
    if ended:
        who = " and ".join(f"rank {rank}" for rank in sorted(ended))
        calls = {
            _answer(rank, note, other)
            for rank, note in stuck.items()
            for other in ended.intersection(note.needs.values())
        }
        lines.append(f"{who} ended without it; call {'; and '.join(sorted(calls))}")
    elif verbs == {"send"}:
        lines.append("all of them send, and none receives; start both directions before you wait: exchange(...)")
    elif verbs == {"receive"}:
        lines.append("all of them receive, and none sends; start the sends first, or both directions: exchange(...)")
    else:
        lines.append("each waits for another one; make the calls in an order in which one of them can begin")
    return "\n".join(lines)


def _answer(rank: int, note: Waiting, other: int) -> str:
    """The call that another rank has left out."""
    verb = note.doing.partition("(")[0]
    if verb == "send":
        return f"receive(into, source={rank}) on rank {other}, or leave the send out"
    if verb == "receive":
        return f"send(tensor, to={rank}) on rank {other}, or leave the receive out"
    return f"{verb} on rank {other}, too"
