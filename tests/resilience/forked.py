"""Run by `test_supervisor` as a program: ranks with torch and gloo, forked from one process that has imported torch."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # by the first optimizer; here once for all ranks
import torch.distributed as dist

from minitrain.resilience.heartbeat import beat, steps
from minitrain.resilience.supervisor import save, supervise

RANKS, STEPS, EVERY = 3, 8, 3


class Forked:
    """What `supervise` needs of a Popen: `poll`, `kill` and `wait`."""

    def __init__(self, function, *args):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            try:
                function(*args)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

    def poll(self, options=os.WNOHANG):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self):
        return self.poll(0)

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def train(folder, attempt, rank, kills):
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meet{attempt}"
    dist.init_process_group("gloo", meeting, timedelta(seconds=60), RANKS, rank)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    begin, path = 0, folder / "checkpoint.pt"
    if path.exists():
        begin, weights, states = torch.load(path)
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
    for step in range(begin, STEPS):
        if (attempt, rank, step) in kills:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(x).sin().square().mean().backward()
        beat(folder, rank, step)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if rank == 0 and (step + 1) % EVERY == 0:
            state = step + 1, model.state_dict(), optimizer.state_dict()
            save(path, lambda new, state=state: torch.save(state, new))
    if rank == 0:
        torch.save(model.state_dict(), folder / "final.pt")


def run(folder, kills):
    """The crashes on the way, and the weights in the end."""
    folder.mkdir()
    started = []

    def start(rank):
        started.append(Forked(train, folder, len(started) // RANKS, rank, kills))
        return started[-1]

    crashes = supervise(start, RANKS, lambda: min(steps(folder, RANKS)) + 1)
    return [(crash.rank, crash.code, crash.step) for crash in crashes], torch.load(folder / "final.pt")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    none, right = run(place / "undisturbed", ())
    crashes, found = run(place / "killed", ((0, 1, 4), (1, 0, 7)))
    assert not none and crashes == [(1, -9, 4), (0, -9, 7)], crashes
    assert all(torch.equal(right[name], found[name]) for name in right)
    print("equal")
