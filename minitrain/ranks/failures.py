"""The error of a failed call on the ranks: the cause first, then where every other rank was."""

from __future__ import annotations

import signal
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass, field


class Report(BaseException):
    """An error whose message says all: notebooks show it without the frames that led to it."""

    def __init__(self, message: str, failures: dict[int, str] | None = None) -> None:
        super().__init__(message)
        self.failures = failures or {}

    def _render_traceback_(self) -> list[str]:  # IPython asks for this
        return f"{type(self).__name__}: {self}".splitlines()


class RanksError(Report, RuntimeError):
    """A call failed on at least one rank: `failures` has for each its traceback, how it died or where it waited."""


class RanksStopped(Report, KeyboardInterrupt):
    """The reader stopped a call (Stop, Ctrl-C). The message says where each rank was; `failures` as in `RanksError`."""


@dataclass(frozen=True)
class Failure:
    """Why a call failed on one rank."""

    text: str  # the traceback without the frames of helpers, or how the process died
    place: str = ""  # the innermost line of the reader's code
    kind: str = ""  # the exception's class, by name
    message: str = ""
    died: bool = False  # whether the process has ended
    pending: bool = False  # whether the rank has started a communication that cannot end
    # On the clock of the process that made this record.
    at: float = field(default_factory=time.monotonic)


def report(first: str, failed: dict[int, Failure], waiting: dict[int, str], size: int) -> tuple[str, dict[int, str]]:
    """Put a failed call into words.

    The first failure is shown in full, others by line. A rank that died comes before those that lost it; of failures
    that came at nearly the same time the lowest rank's comes first, so that the message is the same in every run.

    Args:
        first: The first sentence, such as that the time limit was reached.
        failed: The ranks that failed.
        waiting: For the ranks that did not answer, what they were doing ("waiting in <cell 3>, line 2: ...").
        size: Number of all ranks.
    """
    lines = [first] if first else []
    died = any(failure.died for failure in failed.values())
    start = min((failure.at for failure in failed.values()), default=0.0)
    near = 3.0 if any(failure.pending for failure in failed.values()) else 0.3  # ranks that wait look round in turn
    order = sorted(failed, key=lambda rank: (not failed[rank].died, failed[rank].at - start > near, rank))
    cause = failed[order[0]].text if order else ""
    for text, ranks in _same({rank: failed[rank].text for rank in order}).items():
        failure = failed[ranks[0]]
        if failure.died:
            lines.append(f"{named(ranks, size)} {text}" + (f" in {failure.place}" if failure.place else ""))
        elif text == cause:
            lines.append(f"{named(ranks, size)} failed:\n{text}")
        else:
            # With a rank dead, gloo and NCCL speak of connections and ports: the line is enough, except where a lesson
            # has put it into words, as a ConnectionError.
            spare = (died and failure.kind != "ConnectionError") or failure.message == failed[order[0]].message
            why = "" if spare else f" ({textwrap.shorten(f'{failure.kind}: {failure.message}', 200)})"
            lines.append(f"{named(ranks, size)} failed" + (f" in {failure.place}" if failure.place else "") + why)
    lines += [
        f"{named(ranks, size)} {'is' if len(ranks) == 1 else 'are'} {what}" for what, ranks in _same(waiting).items()
    ]
    texts = {rank: failure.text for rank, failure in failed.items()} | waiting
    return "\n".join(lines), dict(sorted(texts.items()))


def cause_of_death(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is not None and exitcode < 0:
        freed = " (as when a tensor is read whose storage was freed)" * (-exitcode == signal.SIGSEGV)
        return f"died: ended by signal {signal.Signals(-exitcode).name}{freed}"
    return f"died: ended with exit code {exitcode}"


def in_step(failed: dict[int, Failure], ranks: list[int]) -> bool:
    """Whether all of `ranks` failed alike, so that none has sent what another did not receive."""
    kinds = {(failure.place, failure.kind) for failure in failed.values()}
    spoilt = any(failure.died or failure.pending for failure in failed.values())
    return set(failed) == set(ranks) and len(kinds) == 1 and not spoilt


def named(ranks: Iterable[int], size: int) -> str:
    """Ranks in words: `rank 1`, `ranks 0, 2`, `all ranks`."""
    ranks = sorted(ranks)
    if len(ranks) == size > 1:
        return "all ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _same(texts: dict[int, str]) -> dict[str, list[int]]:
    """The ranks of each text, in the order of first appearance."""
    ranks: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(rank)
    return ranks
