"""Starts a training on ranks, torchrun's or its own, and ends it: with its status, or on request.

A run is asked to stop by SIGTERM or Ctrl-C. All ranks then end after the same step, save, and exit with status 0. A
second Ctrl-C ends at once. SIGUSR1 asks it to save and go on.

Ranks of our own ignore these signals, which batch systems may send to all processes at once. So this program takes the
signal, and leaves a file for ranks to find. That is never too early, as a signal would be for a rank that has just
been started. With `--supervise` (`supervise.py`) ranks that fail are started again.
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
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from minitrain.checkpointing.full import hugging_face
from minitrain.comm.lock import Lock
from minitrain.comm.terminal import complain, reader_has_closed
from minitrain.comm.torchrun import end_with_torchrun, given_ranks
from minitrain.composition.settings import Settings, check_whole

if TYPE_CHECKING:
    from minitrain.comm import World
else:
    World = Any  # its module imports torch, which takes seconds: until then this program would not hear a signal


def refuse(settings: Settings) -> None:
    """Find invalid options before ranks are started; the ValueError says what would do. Imports no torch."""
    options = settings.run
    found = sorted((options.folder / "checkpoints").glob("step-*[0-9]"))
    if found and not (options.resume or options.overwrite):
        raise ValueError(
            f"{options.folder} has a run already, with {found[-1].name}: go on with --resume, call this one something "
            "else with --name, or remove that one with --overwrite"
        )
    if options.resume and options.overwrite:
        raise ValueError("resume=True goes on from a checkpoint; leave out overwrite")
    begun = options.resume and found  # with weights of its own
    if options.load and not begun and not hugging_face.located(Path(options.load)).is_file():
        raise ValueError(f"load={options.load!r} is no file; give a safetensors file, or a folder with one")
    if options.export:
        check_export("export", options.export)
    # Looked up and not imported, which takes seconds.
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard=True needs the package tensorboard: pip install tensorboard")
    if options.probes and not Path(options.probes).is_file():
        raise ValueError(f"probes={options.probes!r} is no file; give a TOML file")
    if settings.steps.on_spike == "rewind" and not (options.save_every or options.flash_every):
        raise ValueError("on_spike='rewind' goes back to a checkpoint: add --save-every or --flash-every, or use skip")
    if options.keep < 1:
        raise ValueError(f"keep={options.keep} must be at least 1")
    for name in ("evaluate_every", "save_every", "flash_every", "sample"):
        if (value := getattr(options, name)) < 0:
            raise ValueError(f"{name}={value} must be at least 0, which means never")
    check_whole(vars(options))


def check_export(option: str, name: str) -> None:
    """Find out before a training whether weights can be written to a file; others are not overwritten, only weights."""
    file = Path(name)
    if not file.absolute().parent.is_dir():
        raise ValueError(f"{option}={name!r} lies in no folder that exists")
    if file.is_dir():
        raise ValueError(f"{option}={name!r} is a folder; name a file in it, such as {name}/gpt.safetensors")
    if file.exists() and file.suffix != ".safetensors":
        raise ValueError(f"{option}={name!r} exists and may be no weights; name another file, such as gpt.safetensors")


@dataclass(frozen=True)
class Requests:
    """What the run has been asked to do, as files that the process which gets the signal leaves for ranks to find.

    The name cannot be guessed, and no file exists until something is asked for: a program that is killed leaves none.
    """

    prefix: str = field(default_factory=lambda: f"{tempfile.gettempdir()}/minitrain-{secrets.token_hex(16)}")

    @property
    def stop(self) -> Path:
        """Exists once the run is to stop."""
        return Path(self.prefix + ".stop")

    @property
    def save(self) -> Path:
        """Exists while the run is to save and go on."""
        return Path(self.prefix + ".save")

    def take_save(self) -> bool:
        """Whether the run is to save; once per request, on the rank that sees it first, which tells the others."""
        # Removed when it is seen, so that the next request is seen, too.
        found = self.save.exists()
        self.save.unlink(missing_ok=True)
        return found

    def forget(self) -> None:
        for file in (self.stop, self.save):
            file.unlink(missing_ok=True)


def launch(
    settings: Settings,
    loop: str,
    ranks: int,
    device: str,
    timeout: float,
    rehearse: str | None = None,
    supervised: bool = False,
) -> int:
    """Train on torchrun's ranks, or on `ranks` of our own; returns the exit status. Options are those of `Start`.

    `loop` is the module whose `train` every rank calls with its `Trainer`: "minitrain.train".
    """
    if given_ranks() is not None:
        return _under_torchrun(settings, loop, device, timeout, rehearse)
    from minitrain.ranks.ranks import Ranks, RanksError
    from minitrain.trainer.supervise import supervise

    def start() -> Ranks:
        # Without the check of every call between ranks, which costs a message each.
        return Ranks(ranks, device, timeout, check=False, rehearse=rehearse, hasty=supervised)

    def train(ranks: Ranks, settings: Settings, failed: float | None = None) -> int:
        return max(ranks.run(work, settings, loop, requests, os.getpid(), failed))

    requests = Requests()
    try:
        with _on_signal(requests, "stopping after this step; Ctrl-C again ends at once"):
            if supervised:
                return supervise(start, train, settings)
            with start() as pool:
                return train(pool, settings)
    except KeyboardInterrupt:
        # 130 is 128 + the number of SIGINT, as shells report it.
        complain("ended at once; --resume can use what was saved before")
        return 130
    except (ValueError, RanksError) as error:
        complain(error)
        return 2 if isinstance(error, ValueError) else 1
    finally:
        requests.forget()


def _under_torchrun(settings: Settings, loop: str, device: str, timeout: float, rehearse: str | None) -> int:
    requests = Requests()
    end_with_torchrun()  # another run may already go on from the last checkpoint
    try:
        # torchrun passes SIGTERM on to its ranks, and gives them 30 seconds. It ends with status 1 itself.
        with _on_signal(requests):
            # Within the handlers: importing torch takes seconds, in which no signal may be lost.
            from minitrain.comm.world import World

            world = World.start(device=device, timeout=timeout, check=False, rehearse=rehearse)
            status = work(world, settings, loop, requests, os.getpid())
            world.stop()
            return status
    except Exception as error:
        _end_at_once(error, requests)
    finally:
        requests.forget()


def on_ranks(work: Callable[..., int], ranks: int, device: str, timeout: float, *arguments: Any) -> int:
    """Call `work(world, *arguments)` on torchrun's ranks, or on `ranks` of our own; returns the exit status.

    For programs that only read: a signal ends them at once.
    """
    if given_ranks() is None:
        from minitrain.ranks.ranks import Ranks, RanksError

        try:
            with Ranks(ranks, device, timeout, check=False) as pool:
                return max(pool.run(work, *arguments))
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:
            return reader_has_closed()
        except (ValueError, RanksError) as error:
            complain(error)
            return 2 if isinstance(error, ValueError) else 1
    end_with_torchrun()
    try:
        from minitrain.comm.world import World

        world = World.start(device=device, timeout=timeout, check=False)
        status = work(world, *arguments)
        world.stop()
        return status
    except Exception as error:
        _end_at_once(error)


def _end_at_once(error: Exception, requests: Requests | None = None) -> NoReturn:
    """End this rank of torchrun after an error: leaving the group in order would wait for ranks that may never come."""
    # A rank whose partner died learns of it from a broken connection. The partner's own error matters more: torchrun
    # ends this rank while it waits here, by SIGTERM.
    until = time.monotonic() + (3 if "onnection" in str(error) else 0)
    while not (requests and requests.stop.exists()) and time.monotonic() < until:
        time.sleep(0.05)
    if requests:
        requests.forget()
    traceback.print_exc()
    sys.stderr.flush()
    # Without Python's clean-up, which would wait for ranks that never come.
    os._exit(1)


def work(
    world: World, settings: Settings, loop: str, requests: Requests, program: int, failed: float | None = None
) -> int:
    """Train on this rank, in a folder that no other run writes to meanwhile; returns the exit status.

    Args:
        program: The process to name to another run in this folder.
        failed: When the ranks before these have failed, on this machine's clock.
    """
    from minitrain.checkpointing.full.agreement import same_on_all_ranks
    from minitrain.trainer.refused import Refused, refusing
    from minitrain.trainer.trainer import Trainer

    if settings.steps.ordered_sums and world.device.type == "cpu":
        import torch

        torch.set_num_threads(1)  # a kernel's own sums depend on their number, and that on how many ranks there are
    lock = None
    try:
        with refusing():  # before anything in the folder is written or removed
            lock = same_on_all_ranks(lambda: Lock(settings.run.folder, program) if world.rank == 0 else None, None)

        def stops() -> bool:
            if lock is not None:
                lock.keep()  # asked after every step
            return requests.stop.exists()

        trainer = Trainer(world, settings, stops, asked_to_save=requests.take_save, failed=failed)
        # By name, because the loop imports the trainer.
        status = importlib.import_module(loop).train(trainer)
        if world.rehearsal is not None and world.rank == 0:
            print(world.rehearsal)
        # On all ranks, as it may find messages that NCCL would never have carried.
        world.rehearsed()
        return status
    except Refused as error:
        if world.rank == 0:
            complain(error)
        return 2
    finally:
        if lock is not None:
            lock.release()


@contextmanager
def _on_signal(requests: Requests, message: str = "") -> Iterator[None]:
    """Ask to stop at SIGTERM and at the first Ctrl-C, which is answered with `message`; and to save at SIGUSR1."""

    def receive(number: int, frame: FrameType | None) -> None:
        (requests.save if number == signal.SIGUSR1 else requests.stop).touch()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # the next one ends at once
            if message:
                os.write(2, f"\n{message}\n".encode())  # print may be interrupted in the middle of a print

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
    try:
        yield
    finally:
        # A caller in the same process, such as a test, gets its own handlers back.
        for number, handler in before.items():
            signal.signal(number, handler)
