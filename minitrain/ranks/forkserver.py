"""A process that has imported torch once and forks a copy of itself for every rank.

Importing torch takes seconds; a fork takes milliseconds, so four ranks start in 0.2 s. The forkserver only imports: it
has no threads and has touched no GPU, neither of which survives a fork. It is a new Python process; only for a demo
that is started from the command line it is a fork of that program, which has imported torch and the demo already. On
macOS a process that has loaded torch should not be forked, since Apple's libraries do not allow for it: there it starts
a new process for each rank, which imports torch itself, for some seconds. MINITRAIN_START=spawn does so anywhere.
Either way ranks are kept. It is also the ranks' keeper: when the program that started it ends, in whatever way, it
kills the ranks, even those that are stuck, and removes their folders.

Python's own `multiprocessing` has a forkserver too. It stays in the program's process group together with a helper that
ignores SIGTERM; Jupyter, which ends a kernel's group when the kernel shuts down, then waits for seconds and kills
everything. And it would run the main module again in every rank.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from minitrain.ranks import worker
from minitrain.ranks.failures import RanksError
from minitrain.ranks.places import is_helper
from minitrain.ranks.worker import Plan

PRELOAD = ["torch", "torch.distributed", "minitrain.comm.world"]  # what ranks need not import again
DYNAMO = "torch._dynamo"  # a second and a half; these import it, most of them when they are first used:
USERS_OF_DYNAMO = re.compile(
    r"torch\.optim|DistributedDataParallel|torch\.utils\.checkpoint|TorchDispatchMode|FlopCounterMode|torch\.compile"
    r"|device\(.meta.\)|composition import parts"
)
LOG = "TORCH_CPP_LOG_LEVEL"  # torch reads it when it is loaded
WSL = "https://learn.microsoft.com/windows/wsl/install"
LENGTH = struct.Struct("!I")  # a request is its length, then a pickled (rank, plan); file descriptors travel with it


class Forkserver:
    """The program's side: starts the forkserver, and asks it for ranks.

    Args:
        more: Modules that it imports besides torch.
        fork: Fork this program, which has imported what the ranks will run, instead of starting a new Python process.
            Not on macOS, and not when this program has threads, or has loaded torch without a level for its log.
    """

    def __init__(self, more: Sequence[str] = (), fork: bool = False) -> None:
        if not hasattr(os, "fork"):
            raise RanksError(f"ranks are forked, which {sys.platform} cannot do; on Windows run this in WSL: {WSL}")
        way = os.environ.get("MINITRAIN_START", "spawn" if sys.platform == "darwin" else "fork")
        if way not in ("fork", "spawn"):
            raise ValueError(f"MINITRAIN_START={way!r} is no way to start ranks; use 'fork' or 'spawn'")
        self.control, theirs = socket.socketpair()
        preload = [*PRELOAD, *more] if fork and not uses_dynamo() else [*PRELOAD, DYNAMO, *more]
        alone = threading.active_count() == 1
        if fork and way == "fork" and alone and LOG in os.environ:
            self.process: subprocess.Popen | Fork = Fork(lambda: copied(self.control, theirs, preload))
        else:
            self.process = started(theirs, preload, way == "spawn")
        theirs.close()
        self.owner = os.getpid()
        self.end = weakref.finalize(self, end, self.control, self.process, self.owner)

    def usable(self) -> bool:
        """Whether it still runs, and belongs to this process rather than to one that this was forked from."""
        return self.owner == os.getpid() and self.end.alive and self.process.poll() is None

    def start(self, rank: int, plan: Plan) -> Rank:
        """Fork a process that becomes `rank`."""
        pipe, theirs = Pipe()
        status, report = Pipe(duplex=False)
        request = pickle.dumps((rank, plan))
        try:
            socket.send_fds(self.control, [LENGTH.pack(len(request))], [theirs.fileno(), report.fileno()])
            self.control.sendall(request)
            theirs.close()
            report.close()
            return Rank(status.recv(), pipe, status)
        except (EOFError, OSError):
            raise RanksError("the process that imports torch for the ranks ended; see what it said above") from None


class Rank:
    """One rank's process, as the program sees it: `status` is readable when it has ended."""

    def __init__(self, pid: int, pipe: Connection, status: Connection) -> None:
        self.pid, self.pipe, self.status = pid, pipe, status
        self._exitcode: int | None = None

    def exitcode(self, seconds: float = 0.0) -> int | None:
        """Its exit code, or minus the number of the signal that ended it; None if it runs for longer than that."""
        if self._exitcode is None and self.status.poll(seconds):
            try:
                self._exitcode = self.status.recv()
            except EOFError:  # the forkserver has ended, and the ranks with it
                self._exitcode = -signal.SIGKILL
        return self._exitcode

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.exitcode() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
                os.kill(self.pid, number)


class Fork:
    """A fork of this program in a process group of its own, with those methods of `subprocess.Popen` that we need."""

    def __init__(self, become: Callable[[], None]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                become()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # never back into the program
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(self.pid, 0)  # here too: a Ctrl-C may come before it has
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float = 10.0) -> None:
        """Wait for its end; a TimeoutExpired if it still runs."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("forkserver", timeout)
            time.sleep(0.005)

    def kill(self) -> None:
        """End it without asking."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def copied(control: socket.socket, theirs: socket.socket, preload: list[str]) -> None:
    """In a fork of the program: be its forkserver. Does not return."""
    os.setpgid(0, 0)
    control.close()  # while a copy of the program's end is open, its closing would go unnoticed
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    main(theirs.detach(), preload)


def started(theirs: socket.socket, preload: list[str], spawn: bool) -> subprocess.Popen:
    """A new Python process that is the forkserver; arguments as in `main`."""
    # torch logs errors about other ranks with times and addresses: the ranks' tracebacks say it better. On GPUs
    # NCCL's watchdog may end a process, and only the log says why.
    level = "ERROR" if Path("/dev/nvidiactl").exists() else "FATAL"
    return subprocess.Popen(
        program(f"main({theirs.fileno()}, {preload!r}, {spawn})"),
        env={LOG: level, **os.environ},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        process_group=0,  # Ctrl-C, and Jupyter's signals to a kernel's group, concern this program alone
    )


def uses_dynamo() -> bool:
    """Whether a file that the program has loaded, of a chapter or the reader's, names one of the users of dynamo."""
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    own = (Path(file) for file in files if os.path.isabs(file) and file.endswith(".py") and not is_helper(file))
    return any(USERS_OF_DYNAMO.search(path.read_text(encoding="utf-8", errors="replace")) for path in own)


def end(control: socket.socket, process: subprocess.Popen | Fork, owner: int) -> None:
    """Let the forkserver know that it is no longer needed, and wait for its end."""
    control.close()
    if os.getpid() == owner:
        try:
            process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:  # it is still importing
            process.kill()
            process.wait()


def program(call: str) -> list[str]:
    """The command of a new process that calls a function of this module."""
    root = str(Path(worker.__file__).parents[2])
    imports = f"import sys; sys.path.insert(0, {root!r}); from minitrain.ranks.forkserver import *"
    return [sys.executable, "-c", f"{imports}; {call}"]


def main(control_descriptor: int, preload: list[str], spawn: bool = False) -> None:
    """The forkserver's program: import, then fork (or spawn) whenever asked, until the parent program is gone."""
    # They are for the program, and this process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # nothing of what is imported is garbage
    for module in preload if not spawn else ():
        import_module(module)
    gc.enable()
    gc.freeze()  # what is imported stays: no rank's garbage collection goes through it, and so copies its pages
    control = socket.socket(fileno=control_descriptor)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)  # a child that ends makes `wake` readable
    ranks: dict[int, Connection] = {}  # pid -> where to report its end
    folders = set()
    while True:
        ready = select.select([control, wake], [], [])[0]
        if wake in ready:
            os.read(wake, 4096)
            report_ends(ranks)
        if control in ready:
            request = receive(control)
            if request is None:
                break
            (rank, plan), descriptors = request
            pipe, report = (Connection(descriptor) for descriptor in descriptors)
            if not os.path.isdir(plan.folder):  # the program was stopped while we imported, and wants no ranks any more
                continue
            folders.add(plan.folder)
            pid = spawned(rank, pipe, plan, preload) if spawn else os.fork()
            if pid == 0:
                become(rank, pipe, plan, [control_descriptor, wake, woken, *(end.fileno() for end in ranks.values())])
            pipe.close()  # or the program would not see this rank's end of it close
            ranks[pid] = report
            with contextlib.suppress(OSError):  # the program has ended: the next round sees it
                report.send(pid)
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # at once: nothing here needs tidying up


def spawned(rank: int, pipe: Connection, plan: Plan, preload: list[str]) -> int:
    """Start a new process that becomes a rank; returns its number."""
    descriptor, path = pipe.fileno(), f"{plan.folder}/plan{rank}"
    Path(path).write_bytes(pickle.dumps(plan))
    started = subprocess.Popen(program(f"begin({rank}, {descriptor}, {path!r}, {preload!r})"), pass_fds=[descriptor])
    started.returncode = 0  # it is waited for in `report_ends`, and not by this object
    return started.pid


def begin(rank: int, descriptor: int, path: str, preload: list[str]) -> None:
    """In a new process: import, and be a rank. Does not return."""
    pipe = Connection(descriptor)
    for module in preload:
        with contextlib.suppress(OSError):  # a first import may take a minute: the program should not give us up
            pipe.send_bytes(pickle.dumps(("busy",)))
        import_module(module)
    become(rank, pipe, pickle.loads(Path(path).read_bytes()), [])


def receive(control: socket.socket) -> tuple[Any, list[int]] | None:
    """The next request and its file descriptors; None when the program has ended."""
    header, descriptors, _, _ = socket.recv_fds(control, LENGTH.size, 2)
    if len(header) < LENGTH.size:
        return None
    data, length = b"", LENGTH.unpack(header)[0]
    while len(data) < length:
        more = control.recv(length - len(data))
        if not more:
            return None
        data += more
    return pickle.loads(data), descriptors


def report_ends(ranks: dict[int, Connection]) -> None:
    """Tell the program which ranks have ended, and how."""
    for pid in list(ranks):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            report = ranks.pop(pid)
            with contextlib.suppress(OSError):  # the program no longer listens
                report.send(os.waitstatus_to_exitcode(status))
            report.close()


def become(rank: int, pipe: Connection, plan: Plan, descriptors: list[int]) -> None:
    """In a forked process: forget the forkserver, and be a rank. Does not return."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in descriptors:
            os.close(descriptor)
        worker.main(rank, pipe, plan)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # never back into the forkserver's loop
