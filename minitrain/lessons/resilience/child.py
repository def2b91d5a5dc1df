"""A tiny data-parallel training in pure Python, as a process of its own: what the demos start, kill and start again.

It imports neither torch nor more of this package than it shows, so that a rank starts in a tenth of a second. The
ranks meet over a socket in the folder in which they run. It ends with its parent, however that ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from minitrain.resilience.first_failure import write  # noqa: E402
from minitrain.resilience.heartbeat import beat  # noqa: E402
from minitrain.resilience.supervisor import save  # noqa: E402

WEIGHTS, CHECKPOINT = 5, Path("checkpoint.json")


def end_with_parent() -> None:
    """Standard input is a pipe that the parent never writes to: reading returns when the parent is gone."""
    os.read(0, 1)
    os._exit(1)


class Peers:
    """The other ranks: sums over all of them, by way of rank 0, which adds in the order of ranks."""

    def __init__(self, address: str, rank: int, ranks: int):
        self.ends: dict[int, Connection] = {}
        if rank == 0:
            with Listener(address, "AF_UNIX", backlog=ranks) as listener:
                for end in [listener.accept() for _ in range(ranks - 1)]:
                    # The first message of each says who it is.
                    self.ends[int(end.recv_bytes())] = end
        while rank > 0 and not self.ends:
            try:
                self.ends[0] = Client(address, "AF_UNIX")
                self.tell(0, rank)
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.002)  # rank 0 is not there yet

    def all_reduce(self, values: list[float], step: int) -> list[float]:
        if 0 in self.ends:
            self.tell(0, values)
            return self.hear(0)
        for rank in sorted(self.ends):
            values = [a + b for a, b in zip(values, self.hear(rank), strict=True)]
        # Before a rank can go on, and be killed in the next step, and this one with it.
        with open("finished", "a") as file:
            file.write(f"{step}\n")
        for rank in self.ends:
            self.tell(rank, values)
        return values

    def tell(self, rank: int, value: Any) -> None:
        self.ends[rank].send_bytes(json.dumps(value).encode())

    def hear(self, rank: int) -> list[float]:
        try:
            return json.loads(self.ends[rank].recv_bytes())
        except EOFError:
            raise ConnectionError(f"connection closed by rank {rank}") from None


def gradient(w: list[float], rank: int, step: int) -> list[float]:
    """Of (w·x − y)²/2 for the one sample that a rank sees in a step; numbers without a pattern."""
    x = [((rank + 1) * (step + 3) * (i + 7) * 7919 % 1009) / 1009 - 0.4 for i in range(WEIGHTS)]
    error = sum(a * b for a, b in zip(w, x, strict=True)) - (step * 31 + rank * 17) % 13 / 13
    return [error * each for each in x]


def train(attempt: int, rank: int, ranks: int, steps: int, every: int, breaks: list[Any]) -> None:
    """All steps from the newest checkpoint on; `breaks[attempt]` is (rank, step, how) of what goes wrong."""
    step, w, m = 0, [0.0] * WEIGHTS, [0.0] * WEIGHTS
    if CHECKPOINT.exists():
        step, w, m = json.loads(CHECKPOINT.read_text())
    begin = step
    try:
        peers = Peers(f"meet{attempt}", rank, ranks)
        for step in range(begin, steps):  # noqa: B007  told to `write`
            if attempt < len(breaks) and breaks[attempt][:2] == [rank, step]:
                if breaks[attempt][2] == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("the loss is NaN")
            mine = gradient(w, rank, step)
            beat(Path(), rank, step)
            total = peers.all_reduce(mine, step)
            m = [0.9 * a + b / ranks for a, b in zip(m, total, strict=True)]
            w = [a - 0.1 * b for a, b in zip(w, m, strict=True)]
            if rank == 0 and (step + 1) % every == 0:
                state = json.dumps([step + 1, w, m])
                save(CHECKPOINT, lambda path, state=state: path.write_text(state))
    except Exception as error:
        write(Path(), rank, step, error)
        sys.exit(1)
    if rank == 0:
        Path("weights.json").write_text(json.dumps([each.hex() for each in w]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    train(*json.loads(sys.argv[1]))
