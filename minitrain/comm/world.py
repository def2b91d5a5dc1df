"""A rank's view of the world: its number, the number of ranks, and where its tensors live.

A rank is one process of a training run. `World.start()` joins it with the others. torchrun tells each process its rank
by environment variables; ranks that a program starts itself (`minitrain.ranks.ranks`) meet over a file.
"""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from minitrain.comm.control import forget_control_groups, gather_objects, leave_all, seal_of
from minitrain.comm.groups import time_limit
from minitrain.comm.shared_gpus import carry_by_cpu
from minitrain.comm.timeline import Timeline
from minitrain.watch.board import Board, BoardLost
from minitrain.watch.calls import observe_calls
from minitrain.watch.checks import check_message, check_together, forget
from minitrain.watch.in_flight import forget_dropped, guard_readers
from minitrain.watch.memories import GPU
from minitrain.watch.observers import Communication
from minitrain.watch.rehearsal import NotOnGPUs, Rehearsal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Item = TypeVar("Item")


class World:
    """This rank among all ranks. Make one with `World.start()`, in a `with` block so that it also stops.

    Attributes:
        rank: This rank, 0 to size − 1.
        size: Number of ranks, the world size.
        local_rank: This rank among those of its machine.
        local_size: Number of ranks on its machine.
        device: Where this rank's tensors live: its GPU, or the CPU.
        backend: The library that carries tensors between ranks: "nccl" where each rank has a GPU of its own, else
            "gloo".
        devices: How many devices the ranks compute on: as many as there are ranks, or fewer where ranks share GPUs.
        timeline: Spans of this rank on the wall's clock, for `--trace`.
        costs: What the run cost here, as (what, value, unit): shown, but not claimed.
        rehearsal: The record of this run's communication, in a rehearsal.
    """

    def __init__(self, rank: int, size: int, local_rank: int, local_size: int, device: torch.device):
        self.rank, self.size = rank, size
        self.local_rank, self.local_size = local_rank, local_size
        self.device, self.backend, self.devices = device, "gloo", size
        self.timeline = Timeline()
        self.costs: list[tuple[str, float, str]] = []
        self.draw: Callable[[], Figure] | None = None
        self.rehearsal: Rehearsal | None = None

    @classmethod
    def start(
        cls,
        *,
        rank: int | None = None,
        size: int | None = None,
        store: str | Path | None = None,
        device: str = "auto",
        timeout: float = 60.0,
        check: bool = True,
        rehearse: str | None = None,
    ) -> World:
        """Join the other ranks.

        Args:
            rank: This rank. None takes torchrun's environment; without one this is a world of one rank.
            size: Number of ranks; given where `rank` is.
            store: A file on this machine over which self-started ranks meet; given where `rank` is.
            device: "auto" (a GPU where there is one), "cpu" or "cuda".
            timeout: Seconds after which a communication that did not happen is an error.
            check: Compare shapes across ranks before every collective of ours, slower but with clear errors: torch's
                debug level INFO. Demos and notebooks turn it on, benchmarks off.
            rehearse: "nccl" runs on CPUs what would run on GPUs, unless each rank has one, and `rehearsed()` says how
                NCCL would have dealt with it (see `minitrain.watch.rehearsal`).

        Raises:
            ValueError: `device` is unknown, or "cuda" where there is none; `timeout` is no time; rank, size and store
                do not fit; or `rehearse` is no backend that can be rehearsed.
            RuntimeError: The port on which the ranks were to meet is in use.
        """
        if not 0 < timeout <= 1e9:
            raise ValueError(f"timeout={timeout} must be a number of seconds above 0, and at most 1e9")
        if rehearse not in (None, "nccl"):
            raise ValueError(f"rehearse={rehearse!r} is unknown; use 'nccl', or leave it out")
        gpus = _gpus(device)
        meeting, rank, size, local_rank, local_size = _meeting_place(rank, size, store)
        if rehearse and gpus < local_size:
            gpus = 0  # ranks that share GPUs would talk over gloo
        place = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
        if gpus:
            torch.cuda.set_device(place)
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // local_size))  # ranks share the cores
        # Not DETAIL: its wrapper counts messages as if they were collectives, and refuses the next collective when two
        # ranks have sent different numbers of them (pytorch issue 148976), as a tree or a pipeline does.
        dist.set_debug_level(dist.DebugLevel.INFO if check else dist.DebugLevel.OFF)
        world = cls(rank, size, local_rank, local_size, place)
        try:
            world._meet(meeting, gpus, timedelta(seconds=timeout), check)
        except dist.DistNetworkError as error:
            raise RuntimeError(
                f"the ranks could not meet at {os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} "
                f"({str(error).splitlines()[0]}); if the port is in use, choose another with torchrun --master-port"
            ) from error
        if rehearse:
            world.device = place if world.backend == "nccl" else GPU
            world.rehearsal = Rehearsal.start(world.device)
        if place.type == "cuda":
            carry_by_cpu()
        world.observe(check)
        gather_objects(None)  # all ranks are here, so that their timelines begin together
        world.timeline = Timeline()
        return world

    def _meet(self, meeting: dict[str, Any], gpus: int, limit: timedelta, check: bool) -> None:
        """Meet the other ranks, and settle with them on a backend."""
        rank, size = self.rank, self.size
        if meeting.get("init_method") == "env://":
            shared, _, _ = next(dist.rendezvous("env://", rank, size, timeout=limit))
            meeting = {"store": shared}
            # Each rank looks at its own machine, which is named by its first rank.
            shared.set(f"gpu/{rank}", f"{rank - self.local_rank} {_name_of_gpu(self.device, gpus, self.local_size)}")
            chosen = [tuple(shared.get(f"gpu/{other}").decode().split(" ")) for other in range(size)]
        else:  # one machine, on which all ranks see the same GPUs
            chosen = [("", str(other % gpus) if gpus else "") for other in range(size)]
        self.backend, self.devices = _backend(chosen), len(set(chosen)) if gpus else size
        if nccl := self.backend == "nccl":
            _prepare_nccl(check)
        own = self.device if nccl else None
        dist.init_process_group(self.backend, **meeting, rank=rank, world_size=size, timeout=limit, device_id=own)

    def observe(self, check: bool) -> None:
        """Let the checks look at each communication; those that compare ranks only if asked for."""
        for observer in (check_message, check_together):
            if observer in Communication.observers:
                Communication.observers.remove(observer)
        Communication.observers.append(check_message)
        observe_calls()
        if not check or self.size == 1:
            return
        board, problem = None, ""
        if self.rank == 0:
            try:
                self._kept, board = Board.keep(self.local_size == self.size)
            except OSError as error:
                problem = str(error)
        (address, problem, _), *_ = everyone = gather_objects((board, problem, socket.gethostname()))
        if not problem and address[0].startswith("127.") and len({host for _, _, host in everyone}) > 1:
            problem = f"{address[0]}, which no other machine reaches"
        if problem:
            raise RuntimeError(
                f"rank 0 cannot keep the ranks' board at MASTER_ADDR={os.environ['MASTER_ADDR']} ({problem}); give "
                "torchrun an address of rank 0's machine that the others reach, with --local-addr or --master-addr"
            )
        Board.current = board = Board(address, self.rank, self.size, time_limit(), seal_of())
        board.introduce()
        board.begin(0, range(self.size))
        Communication.observers.append(check_together)
        guard_readers()

    def begin(self, call: int, ranks: Iterable[int]) -> None:
        """A call on these ranks begins: for the checks, which say when a rank has ended without another."""
        if self.rehearsal is not None:
            self.rehearsal.begin()
        if Board.current is not None:
            forget_dropped()
            Board.current.begin(call, ranks)

    def end(self) -> None:
        """This rank's part of the call has ended."""
        if Board.current is not None:
            with suppress(BoardLost):
                Board.current.end()

    def rehearsed(self) -> None:
        """In a rehearsal, check how NCCL would have dealt with the program since the last call; all ranks call it.

        Raises:
            NotOnGPUs: On every rank alike: it would hang or fail.
        """
        if self.rehearsal is not None and (broken := self.rehearsal.check()):
            raise NotOnGPUs("with NCCL this would fail:\n" + "\n".join(map(str, broken)))

    def stop(self) -> None:
        """Leave the others. A program that ends without it may abort."""
        self.end()
        if dist.is_initialized():
            leave_all()  # in an order that all ranks share; torch would go by the groups' names (see `control`)
            dist.destroy_process_group()
        if self.rehearsal is not None:
            self.rehearsal.stop()
        forget_control_groups()
        forget()
        Board.current = None

    def __enter__(self) -> World:
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.device} ({self.backend})"

    def cost(self, what: str, value: float, unit: str) -> None:
        """Note what something cost on this machine. It is shown next to the claims, and never claimed."""
        self.costs.append((what, value, unit))

    @contextmanager
    def timed(self, what: str, count: float = 0, unit: str = "") -> Iterator[None]:
        """Note the seconds that a block took, and with `count`, how many of `unit` a second that makes."""
        self.finish()
        start = time.perf_counter()
        with self.timeline.span(what):
            yield
            self.finish()
        seconds = time.perf_counter() - start
        self.cost(what, seconds, "s")
        if count:
            self.cost(what, count / seconds, f"{unit}/s")

    def finish(self) -> None:
        """Wait until this rank's GPU has finished its work; on a CPU this returns at once."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def figure(self, draw: Callable[[], Figure]) -> None:
        """Give the lesson's picture; it is drawn on rank 0, and only on request."""
        self.draw = draw

    def progress(
        self, items: Iterable[Item], what: str | Callable[[], str], total: int | None = None
    ) -> Iterator[Item]:
        """Go through `items` with a progress bar on rank 0, on standard error so that output stays the same.

        `what` is the text next to the bar, or a function that gives it for each item; `total` their number, where
        `len(items)` is not available.
        """
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        text = what if callable(what) else lambda: what
        if total is None and isinstance(items, Sized):
            total = len(items)
        hidden = self.rank != 0 or not console.is_terminal
        # Drawn by no thread: what is printed counts as progress, so a bar that draws itself would hide a hang.
        with Progress(console=console, transient=True, disable=hidden, auto_refresh=False) as progress:
            task = progress.add_task(text(), total=total)
            drawn = 0.0
            for item in items:
                yield item
                due = time.monotonic() - drawn > 0.1
                drawn = time.monotonic() if due else drawn
                progress.update(task, advance=1, description=text(), refresh=due)


def describe(world: World) -> dict[str, Any]:
    """What a run's figures depend on."""
    device = torch.cuda.get_device_name() if world.device.type == "cuda" else "CPU"
    if world.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest":
        device += " with TF32"  # which is faster than float32, and has 10 bits
    versions = {"torch": torch.__version__.split("+")[0], "python": platform.python_version()}
    backend = world.backend if world.rehearsal is None else f"{world.backend}, rehearsed for NCCL"
    return {"ranks": world.size, "backend": backend, "device": device, **versions}


def _gpus(device: str) -> int:
    """How many GPUs the ranks of this machine may use."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r} is unknown; use auto, cpu or cuda")
    gpus = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and gpus == 0:
        raise ValueError("device='cuda' was asked for, but torch finds no GPU here; use device='cpu'")
    return gpus


def _prepare_nccl(check: bool) -> None:
    """Settings of NCCL and CUDA, where the environment does not say otherwise."""
    # `mail.py` sends in an order that fits.
    settings = {"TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "false"}
    if check:
        # Lessons make many layouts, each with many groups of the same ranks; a training has their messages overlap.
        settings["NCCL_COMM_SPLIT_SHARE_RESOURCES"] = "1"
        # A rank that waits forever raises then, with the line, and is not ended by NCCL's watchdog; ...
        settings["TORCH_NCCL_BLOCKING_WAIT"] = "1"
        # ... and the same sum has the same bits each time, as claims of equal bits say (nccl issue 1497), ...
        settings["NCCL_NVLS_ENABLE"] = "0"
        # ... and the precision that bounds are made for: NVIDIA's containers turn TF32 on.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _name_of_gpu(place: torch.device, gpus: int, local_size: int) -> str:
    """A name for this rank's GPU, "" if it has none.

    Where ranks see fewer GPUs than there are ranks, all may share these, or each may have its own under one number, as
    with CUDA_VISIBLE_DEVICES or Slurm's --gpus-per-task. Then only the UUID tells GPUs apart.
    """
    if not gpus:
        return ""
    return str(place.index if gpus >= local_size else torch.cuda.get_device_properties(place).uuid)


def _backend(chosen: Sequence[tuple[str, ...]]) -> str:
    """The backend of all ranks, by each rank's machine and GPU: "nccl" if each has a GPU of its own."""
    shared = {each[0] for each in chosen if not each[1] or chosen.count(each) > 1}
    own = [str(rank) for rank, (machine, _) in enumerate(chosen) if machine not in shared]
    if own and shared:
        raise ValueError(
            f"ranks {','.join(own)} have a GPU of their own and others have none: start as many ranks on each "
            "machine as it has GPUs, or use --device cpu"
        )
    return "gloo" if shared else "nccl"


def _meeting_place(
    rank: int | None, size: int | None, store: str | Path | None
) -> tuple[dict[str, Any], int, int, int, int]:
    """Where to meet, rank, size, local rank and local size: from the arguments, torchrun's environment, or neither."""
    if rank is not None:
        if size is None or store is None:
            raise ValueError(f"rank={rank} was given without size or store; give all three or none of them")
        if size < 1 or not 0 <= rank < size:
            raise ValueError(f"rank={rank} is not one of size={size} ranks; use 0 to size − 1")
        return {"init_method": f"file://{Path(store).absolute()}"}, rank, size, rank, size
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    given = [name for name in names if name in os.environ]
    if len(given) == len(names):
        numbers = [int(os.environ[name]) for name in names[:4]]
        return {"init_method": "env://"}, numbers[0], numbers[1], numbers[2], numbers[3]
    if "RANK" in given or "WORLD_SIZE" in given:
        missing = ", ".join(name for name in names if name not in given)
        raise ValueError(f"the environment has {', '.join(given)} but no {missing}; start with torchrun, or unset them")
    return {"store": dist.HashStore()}, 0, 1, 0, 1
