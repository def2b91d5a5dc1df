"""A training loop with a fault in it: FAULT="kill 1 3" kills rank 1 after step 3, once; "kill 1 3 always" each time.

Here and not in the tests themselves, since ranks import it.
"""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist

from minitrain import train as real


def train(trainer):
    what, rank, step, *always = os.environ["FAULT"].split()
    goes_on = trainer.log_evaluate_save

    def then(report):
        goes_on(report)
        if trainer.world.rank == int(rank) and trainer.done == int(step):
            marker = trainer.folder / "happened"
            if always or not marker.exists():
                marker.touch()
                FAULTS[what]()

    trainer.log_evaluate_save = then
    return real.train(trainer)


def fails():
    raise LookupError("no such sample")


FAULTS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": fails,
    "wait": lambda: dist.recv(torch.zeros(1), 0),
    "memory": lambda: bytearray(1 << 60),
}
