"""Kills trainings at random, resumes them, and compares the result with a training that was never killed.

    python -m tests.chaos                        # 60 kills in each of four cases; about 40 minutes
    python -m tests.chaos --kills 10 --seed 3 --case memory
    python -m tests.chaos --supervise --kills 200    # one program lives, and starts its ranks again itself

This is no test of the suite: it takes too long, and it is most useful with another seed each time. A kill is SIGKILL,
to the program or to one of its processes, at any moment from the start on. In one layout everything must have the same
bits, and with ordered sums in several. Otherwise additions change their order, so in float64 the weights may differ by
1e-9. Each step's loss shows that the step has taken its own samples, each once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from tests.processes import alive, descendants

ROOT = Path(__file__).parent.parent
OPTIONS = (
    "--layers 2 --hidden 32 --heads 4 --positions 32 --dropout 0.1 --batch 12 --dtype float64 --resume --device cpu "
    "--sample 0 --evaluate-every 0 --save-every 2 --export weights.safetensors"
)
ONE = ["--dp 2"]
MEMORY = ["--dp 2 --async-save --flash-every 1 --save-every 7"]
ORDERED = [f"--ordered-sums --dp {dp} --microbatches {12 // dp}" for dp in (4, 2, 3, 4)]
SEVERAL = ["--dp 4", "--dp 2", "--dp 3", "--dp 4 --zero 1", "--tp 2 --dp 2 --zero 1 --sequence-parallel"]
# name: (options of each start, in turns; how far weights may be from those of the training that was left alone)
CASES = {
    "one layout": (ONE, 0.0),
    "several layouts": (SEVERAL, 1e-9),
    "behind and in memory": (MEMORY, 0.0),
    "ordered sums": (ORDERED, 0.0),
}
SUPERVISED = {"supervised": (ONE, 0.0), "supervised, in memory": (MEMORY, 0.0)}
FINE = ("kills", "in a save", "trainings")  # everything else that is counted is wrong
PATIENCE = 300.0  # seconds without a new step, after which a run hangs


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="in each case")
    parser.add_argument("--supervise", action="store_true", help="kill ranks of one program, which restarts them")
    parser.add_argument("--case", default="", help="a part of the names of the cases to run")
    parser.add_argument("--steps", type=int, default=200, help="of each training")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of which process is killed")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="minitrain-chaos-") as folder:
        for name, (layouts, bound) in (SUPERVISED if options.supervise else CASES).items():
            if options.case in name:
                case = Case(Path(folder) / name.replace(" ", "-"), layouts, bound, options)
                wrong += case.run(options.kills)
                print(f"{name}: {case.told()}", flush=True)
    return 1 if wrong else 0


class Case:
    """Trainings that are killed and go on in `layouts`, one after another, until they have done all steps."""

    def __init__(self, folder: Path, layouts: list[str], bound: float, options: argparse.Namespace):
        self.folder, self.layouts, self.bound = folder, layouts, bound
        self.steps, self.supervise = options.steps, options.supervise
        self.random = random.Random(options.seed)
        self.seen: Counter[str] = Counter()
        self.apart = 0.0

    def run(self, kills: int) -> int:
        """Train until so many have been killed; returns how much was wrong."""
        whole = self.start(self.folder / "whole", self.layouts[0])
        assert whole.wait() == 0, f"the training that is left alone has failed; see {self.folder / 'whole' / 'told'}"
        for number in itertools.count():
            if self.seen["kills"] >= kills:
                break
            folder = self.folder / f"killed-{number}"
            self.seen["trainings"] += 1
            if self.supervise:
                self.train_supervised(folder, kills)
            else:
                self.train(folder, kills)
            self.compare(folder)
            shutil.rmtree(folder)
        return sum(count for what, count in self.seen.items() if what not in FINE)

    def told(self) -> str:
        """All that was seen, in a line."""
        counts = ", ".join(f"{what} {count}" for what, count in self.seen.items())
        return f"{counts}; weights and losses apart by {self.apart:.1e}"

    def start(self, folder: Path, layout: str) -> subprocess.Popen[bytes]:
        """Begin, or go on with, a training."""
        folder.mkdir(parents=True, exist_ok=True)
        words = f"{OPTIONS} {layout} --steps {self.steps} {'--supervise' * self.supervise}".split()
        environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        with open(folder / "told", "ab") as told:
            command = [sys.executable, "-m", "minitrain.train", *words]
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=told, stderr=told)

    def train(self, folder: Path, kills: int) -> None:
        """One training to its end, killed and started again on the way."""
        for layout in itertools.cycle(self.layouts):
            program = self.start(folder, layout)
            moment = self.random.uniform(0.0, 10.0) if self.random.random() < 0.2 else None  # at any time of the start
            if self.seen["kills"] < kills and self.await_steps(program, folder, self.random.randrange(1, 60), moment):
                self.kill(program, folder)
            elif not self.await_steps(program, folder, 2 * self.steps):
                self.ended(program)
                return

    def train_supervised(self, folder: Path, kills: int) -> None:
        """One program to its end; a kill hits one of its ranks or, seldom, the process that forks them."""
        program = self.start(folder, self.layouts[0])
        # The third kill without a new step between them would look like a failure that comes back. A step that is done
        # again, after a restart from the checkpoint before it, is not new.
        early, furthest = False, 0
        try:
            while self.seen["kills"] < kills:
                early = not early and self.random.random() < 0.3  # also while ranks start and load
                moment = self.random.uniform(0.0, 0.3) if early else None
                if not self.await_steps(program, folder, self.random.randrange(2, 40), moment, furthest):
                    break
                furthest = max(furthest, len(lines(folder)))
                if not (family := [each for each in descendants(program.pid) if alive(each)]):
                    continue  # not started yet
                forkserver, *ranks = family
                self.hit(forkserver if not ranks or self.random.random() < 0.05 else self.random.choice(ranks), folder)
            while self.await_steps(program, folder, 2 * self.steps):
                pass
            self.ended(program)
        finally:
            program.kill()

    def await_steps(
        self, program: subprocess.Popen[bytes], folder: Path, count: int, seconds: float | None = None, done: int = 0
    ) -> bool:
        """Wait for so many steps more than there are, or than `done`, or so many seconds; False if the program ends."""
        begun = moved = time.monotonic()
        last = len(lines(folder))
        first = max(last, done)
        while program.poll() is None:
            now, found = time.monotonic(), len(lines(folder))
            moved, last = (now, found) if found != last else (moved, last)
            if (seconds is not None and now - begun > seconds) or found >= first + count:
                return True
            if now - moved > PATIENCE:
                self.seen["hangs"] += 1
                return True
            time.sleep(0.01)
        return False

    def hit(self, victim: int, folder: Path) -> None:
        """Kill one process."""
        self.seen["in a save"] += any((folder / "runs" / "train" / "checkpoints").glob("*.unfinished"))
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.seen["kills"] += 1

    def kill(self, program: subprocess.Popen[bytes], folder: Path) -> None:
        """Kill the program or one of its processes, and see that none stays behind."""
        family = [program.pid, *descendants(program.pid)]
        self.hit(self.random.choice(family), folder)
        try:
            status = program.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.seen["hangs after a kill"] += 1
            program.kill()
            status = program.wait()
        self.seen["ended well though a process was killed"] += status == 0
        until = time.monotonic() + 30
        while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < until:
            time.sleep(0.05)
        self.seen["orphans"] += len(left)

    def ended(self, program: subprocess.Popen[bytes]) -> None:
        """The program has done all steps."""
        if status := program.wait():
            self.seen[f"ended with status {status}"] += 1

    def compare(self, folder: Path) -> None:
        """The killed training with the one that was left alone."""
        whole = self.folder / "whole"
        expected, found = lines(whole), lines(folder)
        if [line["step"] for line in found] != list(range(1, self.steps + 1)):
            self.seen["steps not done exactly once"] += 1
            return
        weights, others = (load_file(path / "weights.safetensors") for path in (whole, folder))
        apart = [abs(a["loss"] - b["loss"]) for a, b in zip(expected, found, strict=True)]
        apart += [float(abs(weights[name] - others[name]).max()) for name in weights]
        self.apart = max(self.apart, *apart)
        self.seen["weights or losses too far apart"] += max(apart) > self.bound
        if len(self.layouts) == 1:  # others write other files
            self.seen["checkpoints of other bits"] += sums(whole) != sums(folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of steps that a training has written."""
    found = []
    with suppress(OSError, ValueError):  # no file yet, or a line that is just being written
        for line in (folder / "runs" / "train" / "metrics.jsonl").read_text().splitlines():
            found.append(json.loads(line))
    return [line for line in found if "loss" in line]


def sums(folder: Path) -> dict[str, Any]:
    """Size and checksum of each file of the last checkpoint."""
    last = max((folder / "runs" / "train" / "checkpoints").glob("step-*[0-9]"))
    return json.loads((last / "manifest.json").read_text())["files"]


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
