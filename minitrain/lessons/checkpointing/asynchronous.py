"""The lesson of `minitrain.checkpointing.asynchronous`: stalls in virtual time, copies, and one writer.

The thread is replaced by a disk with a clock of its own: a write takes as long as its bytes at the disk's speed, and
its values are read at the last moment at which they may be, when the training waits for it. So a copy that is changed
too early is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing import atomic
from minitrain.checkpointing.asynchronous import Asynchronous
from minitrain.comm import VirtualClock, World
from minitrain.comm.memory import storage_bytes
from minitrain.costs import checkpointing as costs
from minitrain.lessons.claims import Claim, fold
from minitrain.lessons.composition.common import shared_folder

CHECKFREQ = "Mohan et al. 2021"
COPY = 1e-3  # virtual seconds per byte of a copy in memory: a power of ten, so that the numbers can be read
SPEEDS = {"a disk that keeps up": 4e-3, "a slow disk": 4e-2}  # virtual seconds per byte
WORK = 20.0  # virtual seconds between two saves


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied while it is open, and lets them take virtual time."""

    def __init__(self, clock: VirtualClock):
        super().__init__()
        self.bytes, self.clock = 0, clock

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.bytes += args[0].nbytes
            self.clock.work(COPY * args[0].nbytes, "copy", "communicate")
        return func(*args, **(kwargs or {}))


class Disk:
    """In place of the thread: `submit` begins a write on the disk's own time."""

    def __init__(self, clock: VirtualClock, speed: float):
        self.clock, self.speed = clock, speed
        self.under_way = self.most = 0

    def submit(self, write: Callable[[Mapping[str, Tensor]], object], state: Mapping[str, Tensor]) -> Write:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        size = sum(tensor.nbytes for tensor in state.values())
        end = self.clock.now + self.speed * size
        self.clock.timeline.record("write", "optimizer", "disk", self.clock.now, end)
        return Write(self, lambda: write(state), end)


class Write:
    """A write that is under way on a `Disk`."""

    def __init__(self, disk: Disk, write: Callable[[], object], end: float):
        self.disk, self.write, self.end = disk, write, end

    def result(self) -> None:
        self.write()
        self.disk.clock.wait_until(self.end)
        self.disk.under_way -= 1


def training(world: World) -> dict[str, Tensor]:
    """Two tensors of 1,404 bytes together; one is a view with gaps."""
    weights = torch.arange(2 * 13 * 25, dtype=torch.float32, device=world.device).view(26, 25)
    return {"weights": weights[::2], "step": torch.zeros(26, dtype=torch.float32, device=world.device)}


class Run(NamedTuple):
    """What was measured in a training that saves after each step."""

    stall: float
    copied: int
    wrong: int
    writers: int
    memory: int
    clock: VirtualClock


def run(world: World, speed: float, saves: int) -> Run:
    """Work, change the state, save; and so on."""
    state, expected = training(world), []
    written: list[dict[str, Tensor]] = []
    saver = Asynchronous(lambda now: written.append({name: tensor.clone() for name, tensor in now.items()}))
    stall, copied = 0.0, 0
    with VirtualClock() as clock:
        disk = Disk(clock, speed)
        saver.pool = disk  # type: ignore[assignment]
        for step in range(saves):
            clock.work(WORK, f"step {step}")
            for tensor in state.values():
                tensor.add_(1)
            expected.append({name: tensor.cpu().clone() for name, tensor in state.items()})
            before = clock.now
            with Copies(clock) as copies:
                saver.save(state)
            stall, copied = stall + clock.now - before, copied + copies.bytes
    saver.wait()
    # A state that was never written is as wrong as it can be.
    missing = [{name: torch.full_like(tensor, torch.nan) for name, tensor in state.items()}] * saves
    pairs = zip([*written, *missing], expected, strict=False)
    wrong = sum(different(now[name], then[name]) for now, then in pairs for name in then)
    return Run(stall, copied, wrong, disk.most, storage_bytes(saver.buffer.values()), clock)


def different(found: Tensor, right: Tensor) -> int:
    """How many elements are not those that are right."""
    return int((found != right).sum()) if found.shape == right.shape else right.numel()


def on_a_thread(folder: Path, state: dict[str, Tensor], saves: int) -> tuple[int, int]:
    """With the real thread and a real disk: elements of the last checkpoint that are wrong, and errors reported."""
    steps = iter(range(saves))

    def write(now: Mapping[str, Tensor]) -> None:
        atomic.save(folder, next(steps), {name: tensor.numpy().tobytes() for name, tensor in now.items()})

    saver = Asynchronous(write)
    for _ in range(saves):
        for tensor in state.values():
            tensor.add_(1)
        saver.save(state)
    saver.wait()
    try:
        files = atomic.load(folder)[1]
    except FileNotFoundError:
        files = dict.fromkeys(state, bytes(4))  # nothing is there yet
    wrong = 0
    for name, data in files.items():
        found = torch.frombuffer(bytearray(data), dtype=state[name].dtype)
        wrong += different(found, state[name].cpu().flatten())
    try:
        saver.save(state)  # `steps` is used up: this write fails
    except StopIteration:
        return wrong, 0  # the training has waited for it
    try:
        saver.save(state)
    except StopIteration:
        return wrong, 1
    return wrong, 0


def demo(world: World, saves: int = 4) -> list[Claim]:
    """Saves behind a training's back; the table shows stalls, copies, memory, and values that stay as they were.

    Args:
        saves: One after each step of 20 virtual seconds.
    """
    runs = {name: run(world, speed, saves) for name, speed in SPEEDS.items()}
    world.draw = lambda: runs["a slow disk"].clock.timeline.draw("a save waits for the one before it")
    size = sum(tensor.nbytes for tensor in training(world).values())
    copy = COPY * size
    stalls, least = {}, {}
    for name, speed in SPEEDS.items():
        predicted = costs.asynchronous_stall(saves, copy, speed * size, WORK)
        stalls[name] = Claim("", "k·c + (k − 1)·max(0, w − τ)", predicted, runs[name].stall, "virtual s", "derived",
                             "virtual clock", tolerance=1e-9)  # fmt: skip
        whole = costs.synchronous_stall(saves, copy, speed * size)
        least[name] = Claim("", "k(c + w)", whole, runs[name].stall, "virtual s", "derived", "virtual clock", "<=")
    first = runs["a slow disk"]
    with shared_folder(world) as shared:
        folder = shared / str(world.rank)
        folder.mkdir()
        wrong, errors = on_a_thread(folder, training(world), saves)
        large = {"state": torch.zeros(2_500_000)}
        saver = Asynchronous(lambda now: atomic.save(folder, saves, {"state": now["state"].numpy().tobytes()}))
        saver.save(large)
        saver.wait()
        with world.timed("10 MB: the stall of a save, of a second copy"):
            saver.buffer["state"].copy_(large["state"])
        with world.timed("10 MB: a write"):
            atomic.save(folder, saves + 1, {"state": large["state"].numpy().tobytes()})
    values = {
        **{name: Claim("", "0", 0, each.wrong, "elements", CHECKFREQ, "compared") for name, each in runs.items()},
        "a thread and a real disk": Claim("", "0", 0, wrong, "elements", CHECKFREQ, "compared"),
    }
    return [
        fold(f"stall of {saves} saves, on a disk that keeps up and on one that does not", stalls, key=True),
        fold("no more than the stall of saves that the training writes itself", least),
        Claim("bytes copied while the training waits", "k · S", saves * size, first.copied, "B", CHECKFREQ, key=True),
        fold("elements written that are not those at the moment of the save", values, key=True),
        Claim("bytes of copies in memory", "S", size, first.memory, "B", "derived", key=True),
        Claim("most writes under way at once", "1", 1, first.writers, "writes", "derived", key=True),
        Claim("errors of a write that the next save reports", "1", 1, errors, "errors", "derived", "compared"),
    ]
