"""Starts a training on ranks, torchrun's or its own, and ends it: with its status, or on request.

A run is asked to stop by SIGTERM or Ctrl-C. All ranks then end after the same step, save, and exit with status 0. A
second Ctrl-C ends at once.

Ranks of our own ignore both signals, which batch systems may send to all processes at once. So this program takes the
signal, and leaves a file for rank 0 to find. That is never too early, as a signal would be for a rank that has just
been started.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from minitrain.comm.torchrun import end_with_torchrun, given_ranks
from minitrain.composition.settings import Settings
from minitrain.trainer.lock import Lock

if TYPE_CHECKING:
    from minitrain.comm import World
else:
    World = Any  # its module imports torch, which takes seconds: until then this program would not hear a signal


def refuse(settings: Settings) -> None:
    """Find invalid options before ranks are started; imports no torch.

    Raises:
        ValueError: Says what would do.
    """
    options = settings.run
    found = sorted((options.folder / "checkpoints").glob("step-*[0-9]"))
    if found and not (options.resume or options.overwrite):
        raise ValueError(
            f"{options.folder} has a run already, with {found[-1].name}: go on with --resume, call this one something "
            "else with --name, or remove that one with --overwrite"
        )
    if options.resume and (options.overwrite or options.load):
        raise ValueError("resume=True goes on from a checkpoint; leave out overwrite and load")
    if options.load and not Path(options.load).is_file():
        raise ValueError(f"load={options.load!r} is no file; give a safetensors file")
    if options.export and not Path(options.export).absolute().parent.is_dir():
        raise ValueError(f"export={options.export!r} lies in no folder that exists")
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard=True needs the package tensorboard: pip install tensorboard")
    if options.keep < 1:
        raise ValueError(f"keep={options.keep} must be at least 1")


def launch(settings: Settings, loop: str, ranks: int, device: str, timeout: float, rehearse: str | None = None) -> int:
    """Train on torchrun's ranks, or on `ranks` of our own; returns the exit status.

    Args:
        settings: What to train.
        loop: The module whose `train` every rank calls with its `Trainer`: "minitrain.train".
        ranks: How many to start, if torchrun has not.
        device: "auto", "cpu" or "cuda", as in `World.start`.
        timeout: Seconds without any progress after which ranks that wait for each other are given up.
        rehearse: As in `World.start`.
    """
    if given_ranks() is not None:
        return _under_torchrun(settings, loop, device, timeout, rehearse)
    # A name that cannot be guessed, and no file until a stop is requested: a program that is killed leaves nothing.
    request = Path(tempfile.gettempdir()) / f"minitrain-stop-{secrets.token_hex(16)}"
    try:
        with _on_signal(request.touch, "stopping after this step; Ctrl-C again ends at once"):
            return _on_own_ranks(settings, loop, ranks, device, timeout, request, rehearse)
    finally:
        request.unlink(missing_ok=True)


def _on_own_ranks(
    settings: Settings, loop: str, ranks: int, device: str, timeout: float, request: Path, rehearse: str | None
) -> int:
    from minitrain.ranks.ranks import Ranks, RanksError

    try:
        with Ranks(ranks, device, timeout, check=False, rehearse=rehearse) as pool:
            return max(pool.run(work, settings, loop, request, os.getpid()))
    except KeyboardInterrupt:
        print("ended at once; --resume can use what was saved before", file=sys.stderr)
        return 130
    except (ValueError, RanksError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


def _under_torchrun(settings: Settings, loop: str, device: str, timeout: float, rehearse: str | None) -> int:
    asked: list[bool] = []
    end_with_torchrun()  # another run may already go on from the last checkpoint
    try:
        # torchrun passes SIGTERM on to its ranks, and gives them 30 seconds. It ends with status 1 itself.
        with _on_signal(lambda: asked.append(True)):
            from minitrain.comm.world import World

            world = World.start(device=device, timeout=timeout, check=False, rehearse=rehearse)
            status = _train(world, settings, loop, lambda: bool(asked), os.getpid())
            world.stop()
            return status
    except Exception as error:
        # A rank whose partner died learns of it from a broken connection. The partner's own error matters more:
        # torchrun ends this rank while it waits here.
        if "onnection" in str(error):
            time.sleep(3)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # leaving the group in order would wait for ranks that may never come


def work(world: World, settings: Settings, loop: str, request: Path, program: int) -> int:
    """Train on this rank; returns the exit status.

    Args:
        world: This rank.
        settings: What to train.
        loop: As of `launch`.
        request: A file that exists once a stop is requested.
        program: The process that has started the ranks.
    """
    return _train(world, settings, loop, lambda: world.rank == 0 and request.exists(), program)


def _train(world: World, settings: Settings, loop: str, asked_to_stop: Callable[[], bool], process: int) -> int:
    """Train in a folder that no other run writes to meanwhile; `process` is the one to name to others."""
    from minitrain.checkpointing.full.agreement import same_on_all_ranks
    from minitrain.trainer.trainer import Refused, Trainer, refusing

    lock = None
    try:
        with refusing():  # before anything in the folder is written or removed
            lock = same_on_all_ranks(lambda: Lock(settings.run.folder, process) if world.rank == 0 else None, None)
        status = importlib.import_module(loop).train(Trainer(world, settings, asked_to_stop))
        if world.rehearsal is not None and world.rank == 0:
            print(world.rehearsal)
        world.rehearsed()
        return status
    except Refused as error:
        if world.rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 2
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _on_signal(stop: Callable[[], None], message: str = "") -> Iterator[None]:
    """Call `stop` at SIGTERM and at the first Ctrl-C, which is answered with `message`."""

    def receive(number: int, frame: FrameType | None) -> None:
        stop()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # the next one ends at once
            if message:
                os.write(2, f"\n{message}\n".encode())  # print may be interrupted in the middle of a print

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
