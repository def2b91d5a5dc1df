"""The program of a rank's process: wait for a call of the parent, run it, send back its output and result.

The forkserver (forkserver.py) starts a process with `main` for every rank. It joins the others (`World.start`), then
serves calls:

- `run`: call a function as `function(world, *args, **kwargs)`;
- `cell`: run source code in a namespace that lives as long as the process;
- `value`: evaluate an expression in that namespace.

Everything it sends goes through one pipe, as a pickled tuple: `("print", stream, text, place)` as soon as something is
printed, `("busy",)` or `("idle",)` four times a second, depending on whether the processor is used or wanted, and
`("answer", value, failure)` at the end.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import io
import os
import pickle
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from types import CodeType, ModuleType
from typing import Any

from minitrain.ranks.failures import Failure
from minitrain.ranks.places import is_cell, remember_source, trim
from minitrain.ranks.sending import to_parent

BEAT = 0.25  # seconds between two looks at the processor time
BUSY = 0.05  # share of a core above which a rank counts as working; waiting for a message takes less than 0.01
SCHEDULED = "/proc/self/schedstat"  # of Linux: nanoseconds on a core, then in the queue for one


@dataclass(frozen=True)
class Plan:
    """Everything that a process must know to become a rank."""

    world: dict[str, Any]  # the arguments of `World.start` that are the same on all ranks
    folder: str  # private: the store in which the ranks meet, and a file per rank for its stack
    environment: dict[str, str]
    search_path: list[str]  # where modules are found
    directory: str  # in which to work


def main(rank: int, pipe: Connection, plan: Plan) -> None:
    """Become `rank` and serve the parent's calls until it says stop or is gone."""
    # Stop is for the parent, which then asks us where we are; and if all processes are told to end, it decides what
    # becomes of us. It ends ranks by a message, or by SIGKILL.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stack = open(f"{plan.folder}/stack{rank}", "w")  # noqa: SIM115  open as long as the process lives
    faulthandler.enable(stack)
    faulthandler.register(signal.SIGUSR1, stack)  # the parent asks "where are you?"; answers inside C++ as well
    os.environ.clear()
    os.environ.update(plan.environment)
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if loopback:  # otherwise gloo and NCCL listen where the host's name leads: often to the outside
        os.environ.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=f"={loopback}")
    sys.path[:] = plan.search_path
    with contextlib.suppress(OSError):
        os.chdir(plan.directory)
    Worker(rank, pipe, plan).serve()


class Stream(io.TextIOBase):
    """The rank's `sys.stdout` or `sys.stderr`: sends what is printed to the parent.

    Text leaves with its newline, or when flushed (a progress bar). In a cell it leaves with the print statement's end,
    so that a printed matrix stays together, and takes with it the place in the cell that printed it.
    """

    encoding = "utf-8"  # type: ignore[assignment]

    def __init__(self, worker: Worker, name: str) -> None:
        self.worker, self.name = worker, name
        self.terminal = self.in_cell = False
        self.pending = ""
        self.place: Any = None

    def write(self, text: str) -> int:
        with self.worker.lock:
            if self.in_cell and not self.pending:
                self.place = printing_place()
            self.pending += text
            if text.endswith("\n") if self.in_cell else "\n" in text:
                self.send()
        return len(text)

    def flush(self) -> None:
        if not self.in_cell:
            self.send()

    def send(self) -> None:
        with self.worker.lock:
            text, self.pending = self.pending, ""
            if text:
                self.worker.send("print", self.name, text, self.place)

    def isatty(self) -> bool:
        return self.terminal

    def writable(self) -> bool:
        return True


def printing_place() -> tuple[str, int] | None:
    """File and line of the innermost frame in a cell; None outside cells."""
    frame = sys._getframe(2)
    while frame is not None and not is_cell(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None


def working_time() -> float:
    """Seconds in which this process used a core, or its main thread waited for one, as on a busy machine."""
    queued = 0
    with contextlib.suppress(OSError), open(SCHEDULED) as file:
        queued = int(file.read().split()[1])
    return time.process_time() + 1e-9 * queued


class Worker:
    """One rank's loop: receive a call, run it, answer."""

    def __init__(self, rank: int, pipe: Connection, plan: Plan) -> None:
        self.rank, self.pipe, self.plan = rank, pipe, plan
        self.lock = threading.RLock()  # threads of the user print too
        self.working = True
        self.world: Any = None
        sys.stdout = self.stdout = Stream(self, "stdout")
        sys.stderr = self.stderr = Stream(self, "stderr")
        threading.Thread(target=self.watch, daemon=True).start()

    def send(self, *message: Any) -> None:
        data = pickle.dumps(message)
        with self.lock, contextlib.suppress(OSError):  # the parent is gone: the forkserver ends this process
            self.pipe.send_bytes(data)

    def watch(self) -> None:
        """Tell the parent during a call whether this rank uses the processor; end with the forkserver."""
        forkserver = os.getppid()
        clock, used = time.monotonic(), working_time()
        while os.getppid() == forkserver:
            time.sleep(BEAT)
            before, clock = clock, time.monotonic()
            already, used = used, working_time()
            with self.lock:  # not after the answer
                if self.working:
                    self.send("busy" if used - already > BUSY * (clock - before) else "idle")
        os._exit(1)

    def serve(self) -> None:
        """Join the other ranks, then answer calls until told to stop."""
        try:
            self.join()
        except BaseException as error:
            self.answer(None, describe(error, in_cell=False))
        else:
            self.answer(None, None)
        while True:
            try:
                kind, screens, payload, number, ranks = pickle.loads(self.pipe.recv_bytes())
            except EOFError:  # the parent is gone
                return
            if kind == "stop":
                break
            self.stdout.terminal, self.stderr.terminal, self.stdout.encoding, self.stderr.encoding = screens
            in_cell = self.stdout.in_cell = self.stderr.in_cell = kind != "run"
            self.working = True
            try:
                self.world.begin(number, ranks)
                value = to_parent(getattr(self, kind)(payload))
                if len(ranks) == self.world.size:
                    self.world.rehearsed()
                self.world.end()
            except BaseException as error:
                self.answer(None, describe(error, in_cell))
            else:
                self.answer(value, None)
        if self.world is not None:
            self.world.stop()

    def join(self) -> None:
        """Become part of the world, and prepare the namespace of the cells."""
        import torch
        import torch.distributed as dist

        from minitrain.comm.world import World

        self.world = World.start(rank=self.rank, store=f"{self.plan.folder}/store", **self.plan.world)
        cells = ModuleType("__main__")  # a real module, so that classes of a cell can be pickled and inspected
        self.names = cells.__dict__
        self.names.update(rank=self.rank, size=self.world.size, world=self.world, torch=torch, dist=dist, __show__=show)
        sys.modules["__main__"] = cells

    def answer(self, value: bytes | None, failed: Failure | None) -> None:
        with self.lock:
            self.stdout.send()
            self.stderr.send()
            self.working = False
            self.send("answer", value, failed)

    def run(self, payload: bytes) -> Any:
        function, args, kwargs = pickle.loads(payload)
        return function(self.world, *args, **kwargs)

    def value(self, payload: tuple[str, str]) -> Any:
        name, source = payload
        remember_source(name, source)
        return eval(compile(source.strip(), name, "eval", dont_inherit=True), self.names)

    def cell(self, payload: tuple[str, str, str | None]) -> None:
        name, source, folder = payload
        remember_source(name, source)
        run = partial(exec, compile_cell(source, name), self.names)
        if folder is None:
            return run()
        from minitrain.player.play import record_cell

        record_cell(self.world, run, name, source, folder)


def compile_cell(source: str, name: str) -> CodeType:
    """Compile a cell; as in a notebook, a bare expression at its end is shown unless it ends with a semicolon."""
    tree = compile(source, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr) and not source.rstrip().endswith(";"):
        call = ast.Call(ast.Name("__show__", ast.Load()), [last.value], [])
        tree.body[-1] = ast.fix_missing_locations(ast.copy_location(ast.Expr(ast.copy_location(call, last)), last))
    return compile(tree, name, "exec", dont_inherit=True)  # without this file's own `from __future__` imports


def show(value: Any) -> None:
    if value is not None:
        print(repr(value))


def describe(error: BaseException, in_cell: bool) -> Failure:
    """Put an exception into words."""
    text, place = trim(error, in_cell)
    pending = getattr(error, "pending", False)
    return Failure(text, place, kind=type(error).__name__, message=str(error), pending=pending)
