"""Ranks: n processes kept alive, on which a notebook, a test or a demo runs code.

    ranks = Ranks(4)
    ranks.run(function, 3)            # function(world, 3) on every rank; the four results
    ranks.execute("x = rank * rank")  # code in a namespace that each rank keeps; in a notebook the cell magic %%ranks
    ranks["x"]                        # [0, 1, 4, 9]

Every rank receives calls through a pipe from this process and answers through it (forkserver.py, worker.py). Among
themselves the ranks use torch.distributed, over a file and the loopback interface. Functions are sent by name and
imported on the rank; the main module is not run again there. `Ranks` says what happens when a rank raises, dies or
waits.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from minitrain.ranks import places
from minitrain.ranks.failures import Failure, RanksError, RanksStopped, cause_of_death, in_step, report
from minitrain.ranks.output import Grouped, Live, screens
from minitrain.ranks.processes import Processes
from minitrain.ranks.sending import from_ranks, to_ranks

__all__ = ["Ranks", "RanksError", "RanksStopped"]

START = 60.0  # seconds without progress after which ranks that should meet are given up
GRACE = 1.0  # seconds for which the others must have been idle once a rank has failed
LONGEST_GRACE = 5.0  # seconds that they get if they are busy
HASTE = 0.1  # seconds in place of both, for a rank that died to be seen after those that have lost it


@dataclass
class Call:
    """The answers of the ranks so far."""

    ranks: list[int]
    output: Live | Grouped
    limit: float | None
    survives: bool = False  # whether ranks that die are no reason to end the others
    hasty: bool = False  # whether a failure ends the others at once
    values: dict[int, bytes | None] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    start: float = field(default_factory=time.monotonic)
    active: dict[int, float] = field(default_factory=dict)  # when a rank last made progress
    idle: dict[int, float] = field(default_factory=dict)  # since when a rank has not
    stopped: bool = False

    @property
    def waiting(self) -> list[int]:
        """The ranks that have not answered."""
        return [rank for rank in self.ranks if rank not in self.values and rank not in self.failed]

    @property
    def fatal(self) -> list[Failure]:
        """Failures after which the call has failed: all but deaths that it survives, while a rank is left."""
        spared = self.survives and not all(rank in self.failed for rank in self.ranks)
        return [failure for failure in self.failed.values() if not (spared and failure.died)]

    def patient(self) -> bool:
        """Whether the ranks that have not answered may still do so."""
        now = time.monotonic()
        if not self.fatal:
            return self.limit is None or now - max(self.active.values(), default=self.start) < self.limit
        since = min(failure.at for failure in self.fatal)
        if self.hasty:
            return now - since < HASTE
        if any(failure.pending for failure in self.fatal):
            return now - since < LONGEST_GRACE  # the others are about to find out, too, and say the same
        # Ranks that can survive a death get a second to notice it: what they report matters more.
        start = since if self.survives else 0.0
        idle = all(now - max(start, self.idle.get(rank, now)) > GRACE for rank in self.waiting)
        return not idle and now - since < LONGEST_GRACE


class Ranks:
    """n worker processes, the ranks of one world.

    When a rank raises, its own traceback comes first. The others may now wait for it forever, so when all of them have
    been idle for a second, they are asked for the line in which they wait. Likewise when a rank dies, with the signal
    or exit code that ended it; and when no rank has printed, answered or used its processor for `timeout` seconds, or
    the reader presses Stop (Ctrl-C). A rank stuck inside gloo or NCCL cannot be freed, and an unreceived message
    would be taken by the next receive, so after all of these the ranks are killed, and fresh ones start with the next
    call. Only when all ranks failed alike do they live on with their variables: a small mistake in a cell costs
    nothing.

    Args:
        n: Number of ranks, at least 1.
        device: "auto", "cpu" or "cuda", as in `World.start`.
        timeout: Seconds without any progress, after which a call ends with an error. None waits forever.
        check: Whether ranks compare what they send with each other (torch's debug level INFO): slower, and an error
            in place of a hang.
        setup: A function of a module that every rank calls first, as `setup(world)`, also after a restart.
        survives: Whether `run` goes on when a rank dies: its result is then None, and fresh ranks start with the next
            call. For code that can do without a rank.
        rehearse: "nccl" is an error in each call that would fail with NCCL, as in `World.start`.
        hasty: Whether a failure ends the other ranks at once, without asking where they are: for a program that starts
            again with the next call.

    Raises:
        ValueError: An invalid argument, or a device that does not exist.
    """

    __iter__ = None  # `ranks[...]` takes expressions; without this line a for loop would evaluate 0, 1, 2, ...

    def __init__(
        self,
        n: int,
        device: str = "auto",
        timeout: float | None = 60.0,
        check: bool = True,
        setup: Callable[..., Any] | None = None,
        survives: bool = False,
        rehearse: str | None = None,
        hasty: bool = False,
    ) -> None:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n={n!r} ranks cannot be started; use a whole number from 1 on")
        _check_timeout(timeout)
        self.size, self.device, self.timeout, self.check, self.setup = n, device, timeout, check, setup
        self.survives, self.rehearse, self.hasty = survives, rehearse, hasty
        self._processes: Processes | None = None  # None: ended after a failure; the next call starts new ones
        self._closed = False
        self._cells = self._calls = 0
        self._emptied = False  # ranks lost what cells had defined
        self._start()
        if "IPython" in sys.modules:
            from minitrain.ranks import magic

            magic.register(self)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(world, *args, **kwargs)` on every rank.

        What rank 0 prints appears at once and unchanged; lines of other ranks are marked `[rank r]`.

        The function is a module's, and sent by name; its other arguments are pickled.

        Returns:
            The results, in the order of ranks. Tensors of a GPU arrive as tensors of the CPU.

        Raises:
            ValueError: The function or an argument cannot be sent.
            RanksError: A rank raised, died, or waits forever.
        """
        name = getattr(function, "__qualname__", repr(function))
        payload = to_ranks(f"{name} with its arguments", (function, args, kwargs))
        file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")
        call = self._all(Live())
        call.survives, call.hasty = self.survives, self.hasty
        return self._ask("run", payload, call, file)

    def __getitem__(self, expression: str) -> list[Any]:
        """The value of an expression on every rank, in the namespace of the cells."""
        if not isinstance(expression, str):
            raise TypeError(f'ranks[{expression!r}]: write the expression as text, such as ranks["x"]')
        places.remember_source(places.EXPRESSION, expression)
        return self._ask("value", (places.EXPRESSION, expression), self._all(Grouped(self.size)))

    def execute(
        self,
        code: str,
        ranks: Iterable[int] | None = None,
        name: str | None = None,
        timeout: float | None = None,
        play: str | None = None,
    ) -> None:
        """Run source code on ranks and show what they print, equal lines once.

        The code finds `rank`, `size`, `world`, `torch` and `dist`, and whatever earlier cells defined. A bare
        expression at its end is shown, as in a notebook.

        Args:
            code: Python source.
            ranks: Those that run it; None for all.
            name: File name of the code in tracebacks; it should not repeat. None counts: "<cell 1 of execute>" ...
            timeout: In place of the ranks' own limit, for this call.
            play: A folder, into which each rank records what it does, for the player.

        Raises:
            ValueError: A rank that does not exist, or a timeout that is no time.
            RanksError: A rank raised, died, or waits forever.
        """
        _check_timeout(timeout)
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        unknown = [rank for rank in chosen if rank not in range(self.size)]
        if unknown or not chosen:
            raise ValueError(f"ranks={unknown} do not exist; use some of the ranks 0 to {self.size - 1}")
        self._cells += 1
        name = name or f"{places.CELL} {self._cells} of execute>"  # not the number of a notebook's cell
        places.remember_source(name, code)
        self._ask("cell", (name, code, play), Call(chosen, Grouped(self.size), timeout or self.timeout))

    def restart(self) -> None:
        """Replace all ranks by fresh ones without variables."""
        self._kill()
        self._start()

    def close(self) -> None:
        """End the ranks. Also done when this object is collected and at the end of the program."""
        self._closed = True
        if self._processes:
            self._processes.end()
            self._processes = None

    def __repr__(self) -> str:
        return f"Ranks({self.size}, device={self.device!r})"

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _all(self, output: Live | Grouped) -> Call:
        return Call(list(range(self.size)), output, self.timeout)

    def _start(self) -> Processes:
        """Start the processes and wait until all have met."""
        if self._closed:
            raise RuntimeError("these ranks are closed; Ranks(n) starts new ones")
        # torch's own limit is for ranks that wait while others compute. It comes later than ours, which names lines.
        patience = 86400.0 if self.timeout is None else self.timeout + 30.0
        world = {"device": self.device, "timeout": patience, "check": self.check, "rehearse": self.rehearse}
        started = self._processes = Processes(self.size, **world)
        call = Call(list(range(self.size)), Live(), START, hasty=self.hasty)
        try:
            self._listen(started, call)
            for failure in call.failed.values():
                if failure.kind == "ValueError":  # a wrong argument, as if it had been found here
                    raise ValueError(failure.message)
            self._conclude(started, call)
            if self.setup:
                self.run(self.setup)
        except BaseException:
            self._kill()
            raise
        return started

    def _ask(self, kind: str, payload: Any, call: Call, file: str = "") -> list[Any]:
        """Send one call to ranks and return what they answer; `file` is that of the function to call."""
        processes = self._processes or self._start()
        call.start = time.monotonic()  # the time in which ranks were started is not the call's
        self._calls += 1
        try:
            for rank in call.ranks:
                processes.send(rank, (kind, screens(rank), payload, self._calls, call.ranks))
            self._listen(processes, call)
        except BaseException:  # such as a second Ctrl-C
            self._kill()
            raise
        self._conclude(processes, call, file)
        return [from_ranks(call.values.get(rank)) for rank in call.ranks]

    def _listen(self, processes: Processes, call: Call) -> None:
        """Read what the ranks send until all have answered, or those that have not seem to wait forever."""
        try:
            while call.waiting and call.patient():
                sources = processes.sources(call.waiting)
                for rank in sorted({sources[ready] for ready in wait(sources, timeout=0.1)}):
                    self._receive(processes, call, rank)
                call.output.flush(finished=False)
        except KeyboardInterrupt:
            call.stopped = True
        call.output.flush(finished=True)

    def _receive(self, processes: Processes, call: Call, rank: int) -> None:
        """Take one message of a rank, or note that it died."""
        try:
            kind, *content = processes.receive(rank)
        except EOFError:
            place = places.waiting_place(processes.stack(rank))  # empty unless the process crashed
            call.failed[rank] = Failure(cause_of_death(processes.exitcode(rank)), place, died=True)
            return
        if kind == "idle":
            call.idle.setdefault(rank, time.monotonic())
            return
        call.active[rank] = time.monotonic()
        call.idle.pop(rank, None)
        if kind == "print":
            call.output.add(rank, *content)
        elif kind == "answer":
            value, failure = content
            if failure is None:
                call.values[rank] = value
            else:
                call.failed[rank] = failure

    def _conclude(self, processes: Processes, call: Call, file: str = "") -> None:
        """Raise if a rank failed or waits; ranks that cannot go on are ended before."""
        if not call.waiting and not call.fatal:
            if call.failed:  # the dead are missing in what comes next
                self._kill()
            return
        lost = not in_step(call.failed, call.ranks)
        try:
            asked = [] if call.hasty and call.failed else call.waiting
            stacks = processes.ask_for_stacks(asked)
            stopped = [rank for rank in asked if processes.stopped(rank)]
        finally:
            if lost:
                self._kill()
        waiting = {}
        for rank, stack in stacks.items():
            place = places.waiting_place(stack, file)
            # Where neither a failure nor the reader ended the call, the time limit has found that all of them wait.
            verb = "busy" if rank not in call.idle and (call.fatal or call.stopped) else "waiting"
            silent = "stopped by a signal (SIGSTOP)" if rank in stopped else "not answering"
            waiting[rank] = f"{verb} in {place}" if place else silent
        first = "Stopped." if call.stopped else "" if call.failed else f"No rank made progress for {call.limit:g} s."
        message, failures = report(first, call.failed, waiting, self.size)
        if lost and self._cells:
            message += "\nThe ranks were restarted: their variables are gone."
            self._emptied = True
        elif self._emptied and any(failure.kind == "NameError" for failure in call.failed.values()):
            message += (
                "\nThe ranks were restarted after an earlier error, and their variables are gone: run the cells that "
                "define them once more (for an exercise, the two set-up cells)."
            )
        raise (RanksStopped if call.stopped else RanksError)(message, failures)

    def _kill(self) -> None:
        if self._processes:
            self._processes.kill()
            self._processes = None


def _check_timeout(timeout: float | None) -> None:
    if timeout is not None and not 0 < timeout <= 1e9:
        raise ValueError(f"timeout={timeout!r} must be a number of seconds above 0 (and at most 1e9), or None forever")
