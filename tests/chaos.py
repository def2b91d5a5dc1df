"""Kills trainings at random, resumes them, and compares what comes out with a training that nobody killed.

    python -m tests.chaos                        # 60 kills in one layout, then 60 through several; about 20 minutes
    python -m tests.chaos --kills 10 --seed 3

No test of the suite: it takes too long, and it is most useful with another seed each time. A kill is SIGKILL, to the
program or to one of its ranks, at any moment from the start on. Each time the same command is given again with
`--resume`. In one layout everything must have the same bits. Through several layouts additions change their order, so
in float64 the weights may differ by 1e-9. Each step's loss shows that the step has taken its own samples, each once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).parent.parent
MODEL = "--layers 2 --hidden 32 --heads 4 --positions 32 --dropout 0.1 --batch 12 --dtype float64"
WRITTEN = "--sample 0 --evaluate-every 0 --save-every 2 --device cpu --export weights.safetensors"
ONE = ["--dp 2"]
SEVERAL = ["--dp 4", "--dp 2", "--dp 3", "--dp 4 --zero 1", "--tp 2 --dp 2 --zero 1 --sequence-parallel"]
PATIENCE = 300.0  # seconds without a new step, after which a run hangs


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60, help="in each of the two cases")
    parser.add_argument(
        "--steps", type=int, default=200, help="of a training; there are as many trainings as the kills need"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of who is killed")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="minitrain-chaos-") as folder:
        for name, layouts, bound in (("one layout", ONE, 0.0), ("several layouts", SEVERAL, 1e-9)):
            case = Case(Path(folder) / name.replace(" ", "-"), layouts, bound, options.steps, options.seed)
            wrong += case.run(options.kills)
            print(f"{name}: {case.told()}", flush=True)
    return 1 if wrong else 0


class Case:
    """Trainings that are killed and go on in `layouts`, one after another, until they have done all steps.

    Args:
        folder: Where they run.
        layouts: Options of each start, in turns; the first are those of the training that nobody kills.
        bound: How far weights may be from that training's; 0: all files have its bits.
        steps: Of a training.
        seed: Of the moments and of who is killed.
    """

    def __init__(self, folder: Path, layouts: Sequence[str], bound: float, steps: int, seed: int):
        self.folder, self.layouts, self.bound, self.steps = folder, layouts, bound, steps
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.apart, self.losses_apart = 0.0, 0.0

    def run(self, kills: int) -> int:
        """Train until so many have been killed; returns how much was wrong."""
        whole = self.start(self.folder / "whole", self.layouts[0])
        assert whole.wait() == 0, f"the training that nobody kills has failed; see {self.folder / 'whole' / 'told'}"
        for number in itertools.count():
            if self.seen["kills"] >= kills:
                break
            self.train(self.folder / f"killed-{number}", kills)
            shutil.rmtree(self.folder / f"killed-{number}")
        return sum(count for what, count in self.seen.items() if what not in ("kills", "in a save", "trainings"))

    def told(self) -> str:
        """All that was seen, in a line."""
        counts = ", ".join(f"{what} {count}" for what, count in self.seen.items())
        return f"{counts}; weights apart by {self.apart:.1e}, losses by {self.losses_apart:.1e}"

    def start(self, folder: Path, layout: str) -> subprocess.Popen[bytes]:
        """Begin, or go on with, a training."""
        folder.mkdir(parents=True, exist_ok=True)
        options = f"{MODEL} {WRITTEN} {layout} --steps {self.steps} --resume".split()
        with open(folder / "told", "ab") as told:
            command = [sys.executable, "-m", "minitrain.train", *options]
            environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
            return subprocess.Popen(command, cwd=folder, env=environment, stdout=told, stderr=told)

    def train(self, folder: Path, kills: int) -> None:
        """One training to its end, killed on the way."""
        self.seen["trainings"] += 1
        for layout in itertools.cycle(self.layouts):
            program = self.start(folder, layout)
            moment = self.random.uniform(0.0, 10.0) if self.random.random() < 0.2 else None  # at any time of the start
            if self.seen["kills"] < kills and self.await_steps(program, folder, self.random.randrange(1, 60), moment):
                self.kill(program, folder)
                continue
            if not self.await_steps(program, folder, 2 * self.steps, None):
                if status := program.wait():
                    self.seen[f"ended with status {status}"] += 1
                break
        self.compare(folder)

    def await_steps(self, program: subprocess.Popen[bytes], folder: Path, count: int, seconds: float | None) -> bool:
        """Wait for so many new steps, or so many seconds; False if the program has ended before."""
        begun = moved = time.monotonic()
        first = last = len(lines(folder))
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

    def kill(self, program: subprocess.Popen[bytes], folder: Path) -> None:
        """Kill the program or one of its processes, and see that none stays behind."""
        family = [program.pid, *children(program.pid)]
        with suppress(ProcessLookupError):
            subprocess.run(["kill", "-KILL", str(self.random.choice(family))], check=False, capture_output=True)
        self.seen["kills"] += 1
        try:
            status = program.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.seen["hangs after a kill"] += 1
            program.kill()
            status = program.wait()
        if status == 0:
            self.seen["ended well though a process was killed"] += 1
        until = time.monotonic() + 30
        while left := [pid for pid in family if alive(pid)]:
            if time.monotonic() > until:
                self.seen["orphans"] += len(left)
                break
            time.sleep(0.05)
        self.seen["in a save"] += any((folder / "runs" / "train" / "checkpoints").glob("*.unfinished"))

    def compare(self, folder: Path) -> None:
        """What the killed training has come to, beside the one that nobody killed."""
        expected, found = (lines(path) for path in (self.folder / "whole", folder))
        if [line["step"] for line in found] != list(range(1, self.steps + 1)):
            self.seen["steps not done exactly once"] += 1
            return
        gap = max(abs(a["loss"] - b["loss"]) for a, b in zip(expected, found, strict=True))
        weights, others = (load_file(path / "weights.safetensors") for path in (self.folder / "whole", folder))
        far = max(float(abs(weights[name] - others[name]).max()) for name in weights)
        self.losses_apart, self.apart = max(self.losses_apart, gap), max(self.apart, far)
        self.seen["weights or losses too far apart"] += max(gap, far) > self.bound
        if not self.bound:
            self.seen["checkpoints of other bits"] += sums(self.folder / "whole") != sums(folder)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of steps that a training has written."""

    def read() -> Iterator[dict[str, Any]]:
        with suppress(OSError, ValueError):  # no file yet, or a line that is just being written
            for line in (folder / "runs" / "train" / "metrics.jsonl").read_text().splitlines():
                yield json.loads(line)

    return [line for line in read() if "loss" in line]


def sums(folder: Path) -> dict[str, Any]:
    """Size and checksum of each file of the last checkpoint."""
    last = max((folder / "runs" / "train" / "checkpoints").glob("step-*[0-9]"))
    return json.loads((last / "manifest.json").read_text())["files"]


def children(pid: int) -> list[int]:
    """All processes below one, at any depth."""
    with suppress(OSError):
        mine = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [*mine, *(below for each in mine for below in children(each))]
    return []


def alive(pid: int) -> bool:
    """Whether there is such a process that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
