"""The lesson of `minitrain.resilience.first_failure`: real tracebacks of three ranks, and many simulated ones."""

from __future__ import annotations

import platform
from pathlib import Path

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons.claims import Claim, as_key
from minitrain.lessons.composition.common import shared_folder
from minitrain.lessons.resilience.common import Break, children, on_rank_0
from minitrain.resilience.first_failure import Report, first, read

RANKS = 3
# As gloo, NCCL and torch's watchdog put it.
CONSEQUENCES = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31337",
    "RuntimeError: [/third_party/gloo/gloo/transport/tcp/pair.cc:547] Read error [10.0.0.7]: Connection reset by peer",
    "RuntimeError: Timed out waiting 60000ms for recv operation to complete",
    "torch.distributed.DistBackendError: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17)",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error, version 2.27",
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 5",
    "BrokenPipeError: [Errno 32] Broken pipe",
)
HEAD = 'Traceback (most recent call last):\n  File "train.py", line 12, in step\n'
CAUSE = "ValueError: the loss is NaN"


def real(folder: Path, what_breaks: Break) -> tuple[str, list[Report]]:
    """Let three processes train, of which one breaks: what is said of it, and all tracebacks."""
    with children(folder, steps=9, every=99, breaks=[what_breaks]) as ranks:
        for rank in range(RANKS):
            ranks.start(rank)
        ranks.wait()
        reports = read(folder)
        return first(reports, RANKS), reports


def simulated(culprit: int, ranks: int, delay: float) -> list[Report]:
    """Tracebacks of all ranks, the others' by `delay` ms after the first; clocks are 0 to `ranks` − 1 ms fast."""
    reports = []
    for rank in range(ranks):
        error = CAUSE if rank == culprit else CONSEQUENCES[rank % len(CONSEQUENCES)]
        # 37 and the number of ranks have no common divisor, so that each clock is off by another number of ms.
        clock = 37 * rank % ranks
        time = 1000 + clock + (0 if rank == culprit else delay)
        reports.append(Report(rank, f"node{rank // 8}", 17, time / 1000, HEAD + error))
    return reports


def demo(world: World, processes: int = 256, delay: float = 50.5) -> list[Claim]:
    """Finds the cause among the tracebacks of ranks that lost each other; the table compares it with the clocks'.

    Args:
        processes: Of the simulated run; no multiple of 37.
        delay: Milliseconds until the other ranks fail, in the simulated run.
    """
    assert processes % 37 and 0 < delay < processes, f"invalid: {processes=}, {delay=}"
    with shared_folder(world) as folder, world.timed("two small trainings that fail"):
        said, reports = on_rank_0(world, lambda: real(folder / "raised", (2, 5, "raise")))
        killed, after = on_rank_0(world, lambda: real(folder / "killed", (1, 6, "kill")))
    host = reports[0].host if reports else platform.node()
    rightly = said == f"rank 2 on {host} failed first, in step 5: {CAUSE}"
    silent = killed.startswith("rank 1 left no traceback") and "step 6" in killed
    by_message = by_clock = two = 0
    for culprit in range(processes):
        runs = simulated(culprit, processes, delay)
        by_message += first(runs, processes).startswith(
            f"rank {culprit} on node{culprit // 8} failed first, in step 17"
        )
        by_clock += min(runs, key=lambda report: report.seconds).rank == culprit
        # Another error of its own in a later step, on a rank whose clock is far behind.
        later = Report((culprit + 1) % processes, "node", 18, 0.0, HEAD + CAUSE)
        two += first([later, *runs], processes).startswith(f"rank {culprit} ")
    named = costs.named_by_clock(processes, delay)
    return [
        *as_key(
            Claim("real ranks: errors whose rank, host and step are named", "1", 1, rightly, source="derived"),
            Claim(
                "real ranks: kills whose rank and step are named, without a traceback", "1", 1, silent, source="derived"
            ),
            Claim(
                f"causes found among {processes} tracebacks, by message", "n", processes, by_message, source="derived"
            ),
            Claim(
                f"causes found among {processes} tracebacks, by clock alone",
                "⌈delay⌉",
                named,
                by_clock,
                source="derived",
            ),
        ),
        Claim(
            "causes found although another rank fails by itself in the next step", "n", processes, two, source="derived"
        ),
        Claim(
            "real ranks: tracebacks after an error, all but one a consequence",
            "n",
            RANKS,
            len(reports),
            source="derived",
        ),
        Claim(
            "real ranks: consequences after a kill",
            "n − 1",
            RANKS - 1,
            sum(r.consequence for r in after),
            source="derived",
        ),
    ]
