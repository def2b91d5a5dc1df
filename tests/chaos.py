"""Kills trainings at random, resumes them, and compares what comes out with a training that nobody killed.

    python -m tests.chaos                        # 60 kills in each of four cases; about 40 minutes
    python -m tests.chaos --kills 10 --seed 3 --case memory
    python -m tests.chaos --supervise --rounds 200    # the program lives, and starts its ranks again itself
    python -m tests.chaos --goodput --kills 60   # a failure every 30 steps: how much of the time is work that stays

No test of the suite: it takes too long, and it is most useful with another seed each time. A kill is SIGKILL, to the
program or to one of its ranks, at any moment from the start on. Each time the same command is given again with
`--resume`. In one layout everything must have the same bits. Through several layouts additions change their order, so
in float64 the weights may differ by 1e-9; with ordered sums they must have the same bits. Each step's loss shows that
the step has taken its own samples, each once.

With `--supervise` the program is started once, and a kill hits one of its ranks or, seldom, the process that forks
them. Then the seconds from each kill to the end of the next step are measured, too.

With `--goodput` kills come at random, every 30 steps on average, as Daly's model has it. The seconds of a step, of a
save and of a restart are measured first, and give the interval between saves, by Daly's formula, and the goodput that
is then possible: the share of the time that is spent on steps that stay. It is compared with the one measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
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

from minitrain.checkpointing.interval import daly
from minitrain.costs import checkpointing as costs

ROOT = Path(__file__).parent.parent
MODEL = "--layers 2 --hidden 32 --heads 4 --positions 32 --dropout 0.1 --batch 12 --dtype float64"
WRITTEN = "--sample 0 --evaluate-every 0 --save-every 2 --device cpu --export weights.safetensors"
ONE = ["--dp 2"]
MEMORY = ["--dp 2 --async-save --flash-every 1 --save-every 7"]
ORDERED = [f"--ordered-sums --dp {dp} --microbatches {12 // dp}" for dp in (4, 2, 3, 4)]
SEVERAL = ["--dp 4", "--dp 2", "--dp 3", "--dp 4 --zero 1", "--tp 2 --dp 2 --zero 1 --sequence-parallel"]
FINE = ("kills", "in a save", "trainings", "of them the ranks' parent")  # all else that is counted is wrong
LARGER = "--layers 4 --hidden 128 --heads 4 --positions 64 --batch 16 --lr 1e-3 --dp 2"  # a step takes a while
PLACES = {"on the disk": "--save-every", "in memory": "--save-every 1000000 --flash-every"}
PATIENCE = 300.0  # seconds without a new step, after which a run hangs


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", "--rounds", type=int, default=60, help="in each case")
    parser.add_argument("--supervise", action="store_true", help="kill ranks of one program, which restarts them")
    parser.add_argument("--goodput", action="store_true", help="measure goodput, with a failure every 30 steps")
    parser.add_argument("--case", default="", help="a part of the names of the cases to run")
    parser.add_argument(
        "--steps", type=int, default=200, help="of a training; there are as many trainings as the kills need"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of who is killed")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="minitrain-chaos-") as folder:
        cases = (
            ("one layout", ONE, 0.0),
            ("several layouts", SEVERAL, 1e-9),
            ("behind and in memory", MEMORY, 0.0),
            ("ordered sums", ORDERED, 0.0),
        )
        if options.goodput:
            for name in (each for each in PLACES if options.case in each):
                goodput = Goodput(Path(folder) / name.replace(" ", "-"), PLACES[name], options.seed)
                wrong += goodput.run(options.kills)
                print(f"{name}: {goodput.told()}", flush=True)
            return 1 if wrong else 0
        if options.supervise:
            cases = (("supervised", ONE, 0.0), ("supervised, in memory", MEMORY, 0.0))
        for name, layouts, bound in (each for each in cases if options.case in each[0]):
            kind = Supervised if options.supervise else Case
            case = kind(Path(folder) / name.replace(" ", "-"), layouts, bound, options.steps, options.seed)
            wrong += case.run(options.kills)
            print(f"{name}: {case.told()}", flush=True)
    return 1 if wrong else 0


class Case:
    """Trainings that are killed and go on in `layouts`, one after another, until they have done all steps.

    Args:
        folder: Where they run.
        layouts: Options of each start, in turns; the first are those of the training that nobody kills.
        bound: How far weights may be from that training's; 0: they have its bits, and in one layout all files do.
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
        return sum(count for what, count in self.seen.items() if what not in FINE)

    def told(self) -> str:
        """All that was seen, in a line."""
        counts = ", ".join(f"{what} {count}" for what, count in self.seen.items())
        return f"{counts}; weights apart by {self.apart:.1e}, losses by {self.losses_apart:.1e}"

    more = ""  # options

    def start(self, folder: Path, layout: str) -> subprocess.Popen[bytes]:
        """Begin, or go on with, a training."""
        folder.mkdir(parents=True, exist_ok=True)
        options = f"{MODEL} {WRITTEN} {layout} --steps {self.steps} --resume {self.more}".split()
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

    def await_steps(
        self, program: subprocess.Popen[bytes], folder: Path, count: int, seconds: float | None, done: int = 0
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
        if len(self.layouts) == 1:  # others write other files
            self.seen["checkpoints of other bits"] += sums(self.folder / "whole") != sums(folder)


class Supervised(Case):
    """Trainings under `--supervise`, of which ranks are killed."""

    more = "--supervise"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.seconds: list[float] = []

    def told(self) -> str:
        """All that was seen, in a line."""
        known = sorted(self.seconds)
        restarts = f"{statistics.median(known):.2f} s, at most {known[-1]:.2f} s" if known else "none measured"
        return f"{super().told()}; from kill to step: median {restarts}"

    def train(self, folder: Path, kills: int) -> None:
        """One training to its end, whose ranks are killed on the way."""
        self.seen["trainings"] += 1
        program = self.start(folder, self.layouts[0])
        try:
            self.kill_ranks(program, folder, kills)
        finally:
            program.kill()  # where this test itself is ended
        self.compare(folder)

    def kill_ranks(self, program: subprocess.Popen[bytes], folder: Path, kills: int) -> None:
        """Kill ranks of a program at random, and wait for its end."""
        # The third kill without a new step between them would look like a failure that comes back. A step that is done
        # again, after a restart from the checkpoint before it, is not new.
        starting, furthest = 0, 0
        while self.seen["kills"] < kills:
            early = starting < 1 and self.random.random() < 0.3  # also while ranks start and load
            moment = self.random.uniform(0.0, 0.3) if early else None
            if not self.await_steps(program, folder, self.random.randrange(2, 40), moment, furthest):
                break
            starting = starting + 1 if early else 0
            furthest = max(furthest, len(lines(folder)))
            family = [each for each in children(program.pid) if alive(each)]
            if not family:
                continue  # not started yet
            forkserver, *ranks = family
            victim = forkserver if not ranks or self.random.random() < 0.05 else self.random.choice(ranks)
            self.seen["in a save"] += any((folder / "runs" / "train" / "checkpoints").glob("*.unfinished"))
            before, killed = started(folder), time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
            self.seen["kills"] += 1
            self.seen["of them the ranks' parent"] += victim == forkserver
            if victim != forkserver and not early:
                self.measure(program, folder, before, killed)
        while self.await_steps(program, folder, 2 * self.steps, None):
            pass
        if status := program.wait():
            self.seen[f"ended with status {status}"] += 1
            print((folder / "told").read_text()[-500:], file=sys.stderr)

    def measure(self, program: subprocess.Popen[bytes], folder: Path, before: tuple[int, bool], killed: float) -> None:
        """Wait for the first step of the ranks that are started again."""
        while program.poll() is None and time.monotonic() < killed + PATIENCE:
            now = started(folder)
            if now[0] != before[0] and now[1]:
                self.seconds.append(time.monotonic() - killed)
                return
            time.sleep(0.005)
        self.seen["hangs"] += program.poll() is None


class Goodput(Supervised):
    """A training of which ranks are killed every 30 steps on average, and how much of its time is work that stays.

    Args:
        folder: Where it runs.
        saving: The option of the trainer that is followed by the steps between two saves.
        seed: Of the moments and of who is killed.
        steps: Of the trainings by which steps and saves are measured.
    """

    def __init__(self, folder: Path, saving: str, seed: int, steps: int = 40):
        super().__init__(folder, [], 0.0, steps, seed)
        self.saving, self.summary = saving, ""

    def program(self, folder: Path, every: int, steps: int) -> subprocess.Popen[bytes]:
        """Begin a training that saves after every so many steps."""
        self.steps = steps
        self.more = f"--supervise {LARGER} {self.saving} {every}"
        return self.start(folder, "")

    def run(self, kills: int) -> int:
        """Measure a step, a save and a restart, and then a training that is killed so often; returns what was wrong."""
        few = self.steps
        step = self.alone(self.folder / "without-saves", 0, few) / (few - 1)
        # Of which a part is no work of the step itself, such as its line in the log.
        whole = step / self.work(self.folder / "without-saves")
        saving = max(1e-4, self.alone(self.folder / "with-saves", 1, few) / (few - 1) - step)
        self.killed(self.folder / "restarts", 5, 4 * few, [2.0 * step] * 6, measured=True)
        restart = max(0.0, statistics.median(self.seconds) - step)
        mean = 30 * step
        every = max(1, round(daly(saving, mean) / step))
        gaps = [self.random.expovariate(1 / mean) for _ in range(kills)]
        # So many that the last kills still hit it, at whatever goodput.
        took, done = self.killed(self.folder / "killed", every, 100 * kills, gaps, measured=False)
        # Steps as they were then: the machine may have had more to do, or less.
        step = whole * self.work(self.folder / "killed", done)
        best = costs.goodput(every * step, saving, restart, mean)
        noise = costs.goodput_noise(every * step, saving, restart, mean, kills)
        found = done * step / took
        self.summary = (
            f"step {step:.3f} s, save {saving:.4f} s, restart {restart:.2f} s; a save every {every} steps; "
            f"{kills} kills, goodput {found:.3f}, by the formula {best:.3f} ± {noise:.3f}: {100 * found / best:.1f} %"
        )
        return sum(count for what, count in self.seen.items() if what not in FINE)

    def told(self) -> str:
        """The seconds that were measured, and both goodputs."""
        return self.summary

    def work(self, folder: Path, done: int | None = None) -> float:
        """Mean seconds of the steps after the first, by the log."""
        seconds = [line["seconds"] for line in lines(folder)][1:]
        return statistics.mean(seconds[:done])

    def alone(self, folder: Path, every: int, steps: int) -> float:
        """Seconds from the first step of an undisturbed training to its last."""
        program = self.program(folder, every, steps)
        self.until(program, folder, 1)
        begun = time.monotonic()
        self.until(program, folder, steps)
        took = time.monotonic() - begun
        if status := program.wait():
            self.seen[f"ended with status {status}"] += 1
        return took

    def killed(self, folder: Path, every: int, steps: int, gaps: Sequence[float], measured: bool) -> tuple[float, int]:
        """Kill a rank after each of the gaps, in seconds; returns what it took, and the steps that were done then."""
        program = self.program(folder, every, steps)
        self.until(program, folder, 1)
        begun = now = time.monotonic()
        furthest, early = count(folder), 0
        for gap in gaps:
            now += gap
            while time.monotonic() < now or early == 2:  # the third without a new step would end the run
                early = 0 if count(folder) > furthest else early
                time.sleep(0.005)
            found = count(folder)
            furthest, early = (found, 0) if found > furthest else (furthest, early + 1)
            while len(family := [each for each in children(program.pid) if alive(each)]) < 2:
                time.sleep(0.005)  # the ranks are being started
            before, moment = started(folder), time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(family[1:]), signal.SIGKILL)
            self.seen["kills"] += 1
            if measured:
                self.measure(program, folder, before, moment)
            now = max(now, moment)
        # Until the steps that the last kill has undone are done again, so that all of its cost is counted.
        furthest = max(furthest, count(folder))
        self.until(program, folder, furthest + 1)
        took, done = time.monotonic() - begun, count(folder) - 1
        program.terminate()
        if status := program.wait():
            self.seen[f"ended with status {status}"] += 1
        return took, done

    def until(self, program: subprocess.Popen[bytes], folder: Path, steps: int) -> None:
        """Wait until so many steps are done."""
        until = time.monotonic() + PATIENCE
        while count(folder) < steps and program.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        self.seen["hangs"] += time.monotonic() > until


def started(folder: Path) -> tuple[int, bool]:
    """Which file of metrics there is, a new one at each start, and whether it ends with a step."""
    path = folder / "runs" / "train" / "metrics.jsonl"
    with suppress(OSError, IndexError):
        return path.stat().st_ino, b'"loss"' in path.read_bytes().splitlines()[-1]
    return 0, False


def lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of steps that a training has written."""

    def read() -> Iterator[dict[str, Any]]:
        with suppress(OSError, ValueError):  # no file yet, or a line that is just being written
            for line in (folder / "runs" / "train" / "metrics.jsonl").read_text().splitlines():
                yield json.loads(line)

    return [line for line in read() if "loss" in line]


def count(folder: Path) -> int:
    """How many lines of steps there are."""
    with suppress(OSError):
        return (folder / "runs" / "train" / "metrics.jsonl").read_bytes().count(b'"loss"')
    return 0


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
