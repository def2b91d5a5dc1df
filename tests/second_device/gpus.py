"""GPUs of the second device for tests whose own process is without them: what they start has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from minitrain.comm import World
from minitrain.lessons.listing import demos, lesson_of
from minitrain.ranks import Ranks, forkserver, processes
from tests.second_device import environment, missing, notes

needs_device = pytest.mark.skipif(bool(missing()), reason=missing())

# Of minitrain all that trains or is a demo: imported once, for all ranks.
PRELOAD = [*forkserver.PRELOAD[:3], forkserver.DYNAMO, "minitrain.train", *(lesson_of(module) for module, _ in demos())]
KEPT: dict[str, Any] = {}


class Where(NamedTuple):
    """How many ranks run on how many GPUs, and whether their communication is replayed under NCCL's rules."""

    ranks: int
    gpus: int
    rehearse: str | None = None
    device: str = "cuda"

    def __str__(self) -> str:
        return f"{self.gpus}-GPU{'s' if self.gpus > 1 else ''}"


TWO, FOUR, SHARED, CPU = Where(2, 2), Where(4, 4), Where(2, 1), Where(1, 1, device="cpu")
REHEARSED = Where(2, 2, "nccl")


@contextmanager
def gpus(count: int, file: Path | None = None) -> Iterator[None]:
    """What starts in this block finds so many GPUs, and leaves in the file what the device notes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(count, file).items():
            patch.setenv(name, value)
        # The session's own forkserver has loaded torch without the device. How many GPUs there are, ranks find in their
        # environment, so that one other will do for all blocks; what is checked with shapes on CPUs need not be here.
        patch.setattr(forkserver, "PRELOAD", PRELOAD)
        patch.setattr(processes, "_forkserver", KEPT.get("forkserver"))
        KEPT["forkserver"] = processes.forkserver()
        yield


class Pools(dict[Where, Ranks]):
    """Ranks that are kept alive: `pools(TWO)` are two on two GPUs, started when they are first asked for."""

    def __init__(self, stack: ExitStack, check: bool) -> None:
        self._stack, self._check = stack, check

    def __call__(self, where: Where) -> Ranks:
        """The ranks. The GPUs that were asked for last are those of programs that a test starts."""
        if where not in self:
            self._stack.enter_context(gpus(where.gpus))
            ranks = Ranks(where.ranks, where.device, check=self._check, rehearse=where.rehearse)
            self[where] = self._stack.enter_context(ranks)
        return self[where]


@contextmanager
def pools(check: bool = True) -> Iterator[Pools]:
    """Ranks for the tests of a file; without `check`, they do not compare what they send."""
    with ExitStack() as stack:
        yield Pools(stack, check)


# It only takes longer, and torch's DDP does so when it compares its buckets.
UNPINNED = "a copy with non_blocking=True from memory that is not pinned"


def run(ranks: Ranks, function: Callable[..., Any], *arguments: Any, allowed: str = "nothing") -> list[Any]:
    """Call `function(world, *arguments)` on every rank, as `Ranks.run`; the device may note what is allowed alone."""
    before = ranks.run(noted)
    # No function of ours around it, since a rehearsal names lines of code.
    found = ranks.run(function, *arguments)
    new = [now - then for now, then in zip(ranks.run(noted), before, strict=True)]
    told = [f"rank {rank}: {text}" for rank, texts in enumerate(new) for text in texts if not text.startswith(allowed)]
    assert not told, "\n".join(told)
    return found


def noted(world: World) -> Counter[str]:
    """What the device has noted so far on this rank."""
    return notes()
