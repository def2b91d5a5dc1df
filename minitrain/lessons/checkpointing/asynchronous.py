"""The lesson of `minitrain.checkpointing.asynchronous`: stalls in virtual time, and copies.

The thread is replaced by a disk with a clock of its own: a write takes as long as its bytes at the disk's speed, and
its values are read at the last moment at which they may be, when the training waits for it. So a copy that is changed
too early is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.checkpointing.asynchronous import Asynchronous
from minitrain.comm import VirtualClock, World
from minitrain.costs import checkpointing as costs
from minitrain.lessons.rows import Claim, Rows

COPY = 1e-3  # virtual seconds per byte of a copy in memory: a power of ten, so that the numbers can be read
SPEEDS = {"a disk that keeps up": 4e-3, "a slow disk": 4e-2}  # virtual seconds per byte
SAVES, WORK = 4, 20.0  # virtual seconds between two saves


def demo(world: World) -> list[Claim]:
    """Saves behind a training's back; the table shows stalls, and values that stay as they were."""
    rows = Rows("Mohan et al. 2021")
    for name, speed in SPEEDS.items():
        state, written, expected = training(world), [], []
        size = sum(tensor.nbytes for tensor in state.values())
        saver = Asynchronous(lambda now, written=written: written.append(copies_of(now)))
        stall = 0.0
        with VirtualClock() as clock:
            saver.pool = Disk(clock, speed)  # type: ignore[assignment]
            for step in range(SAVES):
                clock.work(WORK, f"step {step}")
                for tensor in state.values():
                    tensor.add_(1)
                expected.append(copies_of(state))
                before = clock.now
                with Copies(clock):
                    saver.save(state)
                stall += clock.now - before
        saver.wait()
        what, copy = f"stall of {SAVES} saves, on a disk that keeps up and on one that does not", COPY * size
        theory = costs.asynchronous_stall(SAVES, copy, speed * size, WORK)
        rows.time(what, "k·c + (k − 1)·max(0, w − τ)", theory, stall, "derived", case=name, tolerance=1e-9)
        # A state that was never written is as wrong as it can be.
        wrong = size * abs(SAVES - len(written))
        for now, then in zip(written, expected, strict=False):
            wrong += sum(now[key].shape != then[key].shape or int((now[key] != then[key]).sum()) for key in then)
        what = "elements written that are not those at the moment of the save"
        rows.add(what, "0", 0, wrong, "elements", case=name, how="compared")
    world.draw = lambda: clock.timeline.draw("a save waits for the one before it")
    return rows.claims()


def training(world: World) -> dict[str, Tensor]:
    """Two tensors of 1,404 bytes together; one is a view with gaps."""
    weights = torch.arange(2 * 13 * 25, dtype=torch.float32, device=world.device).view(26, 25)
    return {"weights": weights[::2], "step": torch.zeros(26, dtype=torch.float32, device=world.device)}


def copies_of(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in state.items()}


class Copies(TorchDispatchMode):
    """Counts the bytes that are copied while it is open, in tensors of `least` bytes; they take virtual time."""

    def __init__(self, clock: VirtualClock, least: int = 0):
        super().__init__()
        self.bytes, self.clock, self.least = 0, clock, least

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default and args[0].nbytes >= self.least:
            self.bytes += args[0].nbytes
            self.clock.work(COPY * args[0].nbytes, "copy", "communicate")
        return func(*args, **(kwargs or {}))


class Disk:
    """In place of the thread: `submit` begins a write on the disk's own time."""

    def __init__(self, clock: VirtualClock, speed: float):
        self.clock, self.speed = clock, speed

    def submit(self, write: Callable[[Mapping[str, Tensor]], object], state: Mapping[str, Tensor]) -> SimpleNamespace:
        size = sum(tensor.nbytes for tensor in state.values())
        end = self.clock.now + self.speed * size
        self.clock.timeline.record("write", "optimizer", "disk", self.clock.now, end)

        def result() -> None:
            write(state)
            self.clock.wait_until(end)

        return SimpleNamespace(result=result)
