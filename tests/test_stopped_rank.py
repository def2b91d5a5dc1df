"""A rank of a training stands still: the others end with an error after the time limit, and the run with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minitrain import train
from tests.processes import alive, becomes, descendants

LIMIT = 8  # seconds
LOADED = 60  # seconds that a loaded machine may need in addition
SMALL = "--layers 1 --hidden 16 --heads 2 --positions 16 --batch 4 --device cpu --steps 1000000".split()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.slow("waits for its time limit")
def test_a_rank_that_stands_still_ends_the_run(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m"]
    command = [*torchrun, "minitrain.train", *SMALL, "--dp=2", "--tp=2", f"--timeout={LIMIT}"]
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(train.__file__))}
    steps, errors = tmp_path / "runs" / "train" / "metrics.jsonl", tmp_path / "errors"
    with open(errors, "w") as file:
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=file, cwd=tmp_path, env=environment)
    ranks = []
    try:
        assert becomes(lambda: steps.exists() and len(steps.read_text().splitlines()) > 3, 3 * LOADED)
        ranks = descendants(run.pid)
        assert len(ranks) == 4, errors.read_text()
        os.kill(ranks[-1], signal.SIGSTOP)
        # gloo's words; the group may be any that the stopped rank is in
        begin = time.monotonic()
        assert becomes(lambda: f"Timed out waiting {LIMIT}000ms" in errors.read_text(), LIMIT + LOADED)
        assert time.monotonic() - begin > LIMIT - 1
        assert becomes(lambda: not any(map(alive, ranks[:-1])), LOADED)
        os.kill(ranks[-1], signal.SIGCONT)  # torchrun, which asked it to end, would kill it after 30 seconds only
        assert run.wait(timeout=LOADED) == 1
        assert not [rank for rank in ranks if alive(rank)]
    finally:
        for pid in filter(alive, (*ranks, run.pid)):
            os.kill(pid, signal.SIGKILL)
        run.wait()
