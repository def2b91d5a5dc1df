"""Ranks: n processes kept alive, on which a notebook, a test or a demo runs code.

    ranks = Ranks(4)
    ranks.run(function, 3)            # function(world, 3) on every rank; the four results
    ranks.execute("x = rank * rank")  # code in a namespace that each rank keeps; in a notebook the cell magic %%ranks
    ranks["x"]                        # [0, 1, 4, 9]

How it works. A *forkserver* is a process that has imported torch once and forks a copy of itself for every rank, so
four ranks start in 0.2 s; it never touches a GPU, since CUDA does not survive a fork. Every rank receives calls through
a pipe to this process and answers through it (worker.py). The ranks reach each other by torch.distributed, over a file
and the loopback interface. Functions are sent by name and imported on the rank; the main module is not run again there.

What can go wrong, and what then happens:

- A rank raises: its own traceback comes first. The others may now wait for it for ever. They get a second without
  progress, then are asked for the line in which they wait.
- A rank dies: likewise, with the signal or exit code that ended it.
- Nobody gets on: after `timeout` seconds in which no rank printed, answered or used its processor, and when the reader
  presses Stop (Ctrl-C), every rank is asked for its line.

A rank stuck inside gloo or NCCL cannot be freed, and a message that nobody took would be taken by the next receive. So
after all of these the ranks are killed, and fresh ones start with the next call. Only when all ranks failed alike do
they live on with their variables: a slip in a cell costs nothing.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

from minitrain.runtime import places, worker
from minitrain.runtime.failures import Failure, RanksError, RanksStopped, cause_of_death, in_step, report
from minitrain.runtime.output import Grouped, Live, screens
from minitrain.runtime.sending import from_ranks, to_ranks

PRELOAD = ["torch", "torch.distributed", "torch._dynamo", "minitrain.runtime.world", "minitrain.runtime.worker"]
GRACE = 1.0  # seconds without progress that the others get once a rank has failed
LONGEST_GRACE = 5.0  # the same for those that keep computing
POLITENESS = 2.0  # seconds in which a rank that was told to stop may leave the others in order
TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")


@dataclass
class Call:
    """What has come back from the ranks so far."""

    ranks: list[int]
    output: Live | Grouped
    values: dict[int, bytes | None] = field(default_factory=dict)
    failed: dict[int, Failure] = field(default_factory=dict)
    active: dict[int, float] = field(default_factory=dict)  # when a rank last showed that it gets on
    stopped: bool = False

    @property
    def waiting(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.values and rank not in self.failed]

    def patient(self, limit: float | None) -> bool:
        """Whether the ranks that have not answered may still do so."""
        now = time.monotonic()
        quiet = now - max(self.active.values())
        if not self.failed:
            return limit is None or quiet < limit
        return quiet < GRACE and now - min(failed.at for failed in self.failed.values()) < LONGEST_GRACE


class Ranks:
    """n worker processes, the ranks of one world.

    Args:
        n: Number of ranks, at least 1.
        device: "auto", "cpu" or "cuda", as in `World.start`.
        timeout: Seconds without any progress (nothing printed, no rank done, no processor used) after which a call
            ends with an error that names the line each rank waits in. None waits for ever. May be changed any time.
        check: Whether ranks compare what they send with each other (torch's debug level DETAIL): slower, and an error
            in place of a hang.

    Raises:
        ValueError: An argument that cannot be, or a device that is not there.
    """

    __iter__ = None  # `ranks[...]` takes expressions; without this line a for loop would evaluate 0, 1, 2, ...

    def __init__(self, n: int, device: str = "auto", timeout: float | None = 60.0, check: bool = True) -> None:
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n={n!r} ranks cannot be started; use a whole number from 1 on")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout!r} must be a number of seconds above 0, or None to wait for ever")
        self.size, self.device, self.timeout, self.check = n, device, timeout, check
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder = ""
        self._cells = 0
        self._closed = False
        self._start()
        if "IPython" in sys.modules:
            from minitrain.runtime import magic

            magic.register(self)

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Call `function(world, *args, **kwargs)` on every rank.

        What rank 0 prints appears at once and unchanged; lines of other ranks are marked `[rank r]`.

        Args:
            function: A function of a module; it is sent by name. Arguments and results are pickled.

        Returns:
            The results, in the order of ranks. Tensors of a GPU arrive as tensors of the CPU.

        Raises:
            ValueError: The function or an argument cannot be sent.
            RanksError: A rank raised, died, or waits for ever.
        """
        payload = to_ranks(
            f"{getattr(function, '__qualname__', function)} with its arguments", (function, args, kwargs)
        )
        file = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_filename", "")
        return self._ask("run", payload, Live(), file=file)

    def __getitem__(self, expression: str) -> list[Any]:
        """The value of an expression on every rank, in the namespace of the cells."""
        if not isinstance(expression, str):
            raise TypeError(f'ranks[{expression!r}]: write the expression as text, such as ranks["x"]')
        ast.parse(expression.strip(), places.EXPRESSION, "eval")
        places.remember_source(places.EXPRESSION, expression)
        return self._ask("value", (places.EXPRESSION, expression), Grouped(self.size))

    def execute(
        self,
        code: str,
        ranks: Iterable[int] | None = None,
        name: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Run source code on ranks and show what they print, equal lines once.

        The code finds `rank`, `size`, `world`, `torch` and `dist`, and whatever earlier cells defined. A bare
        expression at its end is shown, as in a notebook.

        Args:
            code: Python source.
            ranks: Those that run it; None for all.
            name: File name of the code in tracebacks; it should not repeat. None counts: "<cell 1>", "<cell 2>", ...
            timeout: In place of `self.timeout`, for this call.
        """
        chosen = list(range(self.size)) if ranks is None else sorted(set(ranks))
        unknown = [rank for rank in chosen if rank not in range(self.size)]
        if unknown or not chosen:
            raise ValueError(f"ranks={unknown or chosen} do not exist; there are the ranks 0 to {self.size - 1}")
        self._cells += 1
        name = name or f"{places.CELL} {self._cells}>"
        ast.parse(code, name)  # a slip of the pen is found here, once
        places.remember_source(name, code)
        self._ask("cell", (name, code), Grouped(self.size), chosen, timeout)

    def restart(self) -> None:
        """Replace all ranks by fresh ones without variables."""
        self._kill()
        self._start()

    def close(self) -> None:
        """End the ranks. Also done when this object is collected and at the end of the program."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        """Start the processes and wait until all have met."""
        if self._closed:
            raise RuntimeError("these ranks are closed; Ranks(n) starts new ones")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._pipes, self._processes = [], []
        self._folder = tempfile.mkdtemp(prefix="minitrain-")
        self._finalizer = weakref.finalize(self, end, self._processes, self._pipes, self._folder, os.getpid())
        plan = worker.Plan(
            size=self.size,
            device=self.device,
            # torch's own limit, for whoever waits while others work; later than ours, which names every rank's line
            timeout=30.0 + (self.timeout or 86400.0),
            check=self.check,
            folder=self._folder,
            environment={name: value for name, value in os.environ.items() if not name.startswith(TORCHRUN)},
            path=os.getcwd(),
        )
        try:
            with surroundings():
                for rank in range(self.size):
                    pipe, theirs = context.Pipe()
                    process = context.Process(target=worker.main, args=(rank, theirs, plan), daemon=True)
                    self._pipes.append(pipe)
                    process.start()
                    self._processes.append(process)
                    theirs.close()  # so that this pipe ends when the process does
            call = self._listen(Call(list(range(self.size)), Live()), limit=60.0)
            for failed in call.failed.values():
                if failed.error and isinstance(error := pickle.loads(failed.error), ValueError):
                    raise error from None  # a wrong argument: as if it had been found here
            self._conclude(call, 60.0, "")
        except BaseException:
            self._kill()
            raise

    def _ask(
        self,
        kind: str,
        payload: Any,
        output: Live | Grouped,
        ranks: list[int] | None = None,
        timeout: float | None = None,
        file: str = "",
    ) -> list[Any]:
        """Send one call to ranks and return what they answer."""
        if not self._finalizer.alive:
            self._start()
        call = Call(list(range(self.size)) if ranks is None else ranks, output)
        limit = timeout or self.timeout
        try:
            for rank in call.ranks:
                with contextlib.suppress(OSError):  # it died since the last call: `_listen` will find out
                    self._pipes[rank].send_bytes(pickle.dumps((kind, screens(rank), payload)))
            self._listen(call, limit)
        except BaseException:  # such as a second Ctrl-C
            self._kill()
            raise
        self._conclude(call, limit, file)
        return [from_ranks(call.values[rank]) for rank in call.ranks]

    def _listen(self, call: Call, limit: float | None) -> Call:
        """Read what the ranks send until all have answered, or those that have not seem to wait for ever."""
        call.active = dict.fromkeys(call.ranks, time.monotonic())
        try:
            while call.waiting and call.patient(limit):
                waiting: dict[Any, int] = {self._pipes[rank]: rank for rank in call.waiting}
                waiting |= {self._processes[rank].sentinel: rank for rank in call.waiting}
                for rank in sorted({waiting[ready] for ready in wait(waiting, timeout=0.1)}):
                    self._receive(call, rank)
                call.output.flush(finished=False)
        except KeyboardInterrupt:
            call.stopped = True
        call.output.flush(finished=True)
        return call

    def _receive(self, call: Call, rank: int) -> None:
        """Take one message of a rank, or note that it died."""
        try:
            if not self._pipes[rank].poll():
                raise EOFError  # nothing to read, so its process has ended
            kind, *content = pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError):
            self._processes[rank].join(1.0)
            where = places.waiting_place(self._stack(rank), "")  # written if the process crashed
            call.failed[rank] = Failure(cause_of_death(self._processes[rank].exitcode), where, died=True)
            return
        call.active[rank] = time.monotonic()
        if kind == "print":
            call.output.add(rank, *content)
        elif kind == "answer":
            value, failure = content
            if failure is None:
                call.values[rank] = value
            else:
                call.failed[rank] = failure

    def _conclude(self, call: Call, limit: float | None, file: str) -> None:
        """Raise if a rank failed or waits; ranks that cannot go on are ended first."""
        if not call.waiting and not call.failed:
            return
        now = time.monotonic()
        verbs = {rank: "waiting" if now - call.active[rank] > 2 * worker.BEAT else "busy" for rank in call.waiting}
        lost = not in_step(call.failed, call.ranks)
        try:
            stacks = self._ask_for_stacks(call.waiting)
        finally:
            if lost:
                self._kill()
        waiting = {}
        for rank, verb in verbs.items():
            place = places.waiting_place(stacks[rank], file)
            waiting[rank] = f"{verb} in {place}" if place else "not answering"
        first = "Stopped." if call.stopped else "" if call.failed else f"No rank got on for {limit:g} s."
        message, failures = report(first, call.failed, waiting, self.size)
        if lost and self._cells:
            message += "\nThe ranks were restarted: their variables are gone."
        raise (RanksStopped if call.stopped else RanksError)(message, failures)

    def _ask_for_stacks(self, ranks: list[int]) -> dict[int, str]:
        """Where each of these ranks is: faulthandler writes its stack to a file, even if it is stuck inside C++."""
        for rank in ranks:
            with contextlib.suppress(OSError):  # it has died meanwhile
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + 2.0
        stacks: dict[int, str] = {}
        while time.monotonic() < until:
            before, stacks = stacks, {rank: self._stack(rank) for rank in ranks}
            if all(stacks.values()) and stacks == before:
                break
            time.sleep(0.05)
        return stacks

    def _stack(self, rank: int) -> str:
        return Path(f"{self._folder}/stack{rank}").read_text(errors="replace")

    def _kill(self) -> None:
        """End the ranks without a word: they may be unable to listen."""
        for process in self._processes:
            process.kill()
        self._finalizer()


def end(processes: list[Any], pipes: list[Connection], folder: str, owner: int) -> None:
    """End processes, politely where they listen, and remove what they left."""
    if os.getpid() != owner:
        return  # a fork of the parent ends: the ranks are not its own
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.send_bytes(pickle.dumps(("stop", None, None)))
    until = time.monotonic() + POLITENESS
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        process.kill()
    for process in processes:
        process.join()
    for pipe in pipes:
        pipe.close()
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """What processes should find when they start.

    multiprocessing would run the main module again in each of them, so it is shown an empty one. And torch logs errors
    of other ranks with times and source lines of its own; a rank's traceback says it better.
    """
    main = sys.modules["__main__"]
    level = os.environ.get("TORCH_CPP_LOG_LEVEL")
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ["TORCH_CPP_LOG_LEVEL"] = level or "FATAL"  # torch reads it when the forkserver imports it
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if level is None:
            del os.environ["TORCH_CPP_LOG_LEVEL"]
