"""The lesson of `minitrain.resilience.first_failure`: real tracebacks of three ranks, and many simulated ones."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from minitrain.comm import World
from minitrain.costs import resilience as costs
from minitrain.lessons import Claim
from minitrain.lessons.resilience.common import Break, children, on_rank_0
from minitrain.lessons.rows import Rows
from minitrain.resilience.first_failure import Report, first, read

RANKS = 3
PROCESSES, DELAY = 256, 50.5  # of the simulated run, and milliseconds until the other ranks fail
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


def demo(world: World) -> list[Claim]:
    """Finds the cause among the tracebacks of ranks that lost each other; the table compares it with the clocks'."""
    rows = Rows("derived")
    with world.timed("a small training that fails"):
        killed = on_rank_0(world, lambda: real((1, 6, "kill")))
    silent = killed == "rank 1 left no traceback: killed, in step 6 or just before"
    rows.add("real ranks: kills whose rank and step are named, without a traceback", "1", 1, silent, "1")
    by_message = by_clock = 0
    for culprit in range(PROCESSES):
        reports = simulated(culprit, PROCESSES, DELAY)
        expected = f"rank {culprit} on node{culprit // 8} failed first, in step 17"
        by_message += first(reports, PROCESSES).startswith(expected)
        by_clock += min(reports, key=lambda report: report.seconds).rank == culprit
    rows.add(f"causes found among {PROCESSES} tracebacks, by message", "n", PROCESSES, by_message, "1")
    named = costs.named_by_clock(PROCESSES, DELAY)
    rows.add(f"causes found among {PROCESSES} tracebacks, by clock alone", "⌈delay⌉", named, by_clock, "1")
    return rows.claims()


def real(what_breaks: Break) -> str:
    """Let three processes train, of which one breaks: what is said of it."""
    with TemporaryDirectory() as folder, children(Path(folder) / "ranks", 9, 99, [what_breaks]) as ranks:
        for rank in range(RANKS):
            ranks.start(rank)
        ranks.wait()
        return first(read(ranks.folder), RANKS)


def simulated(culprit: int, ranks: int, delay: float) -> list[Report]:
    """Tracebacks of all ranks, the others' by `delay` ms after the first; clocks are 0 to `ranks` − 1 ms fast."""
    reports = []
    for rank in range(ranks):
        error, late = (CAUSE, 0) if rank == culprit else (CONSEQUENCES[rank % len(CONSEQUENCES)], delay)
        # 37 and the number of ranks have no common divisor, so that each clock is off by another number of ms.
        seconds = (1000 + 37 * rank % ranks + late) / 1000
        reports.append(Report(rank, f"node{rank // 8}", 17, seconds, HEAD + error))
    return reports
