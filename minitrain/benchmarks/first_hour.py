"""The first hour on GPUs: runs the steps of `hour_steps.py`, stops at the first surprise, and writes a report to send.

A surprise is whatever someone would have to look into: another exit status, a claim that says NO, another backend, a
figure out of its range, a loss that differs from that of the same training elsewhere, a hang, a process that is left.
Imports no torch: a program that had asked CUDA for something would be in the way of ranks that are forked.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro

from minitrain.benchmarks.hour_steps import NEVER, OVER, Figure, Step, steps
from minitrain.benchmarks.watched import Ended, nvidia_smi, watched
from minitrain.comm.terminal import complain
from minitrain.planning import plan
from minitrain.trainer import command

ABOUT = """
import json, os, platform, torch
gpus = torch.cuda.device_count()
about = {"gpus": gpus, "gpu": torch.cuda.get_device_name() if gpus else "", "torch": torch.__version__}
if gpus and torch.version.cuda:
    about |= {"cuda": torch.version.cuda, "nccl": ".".join(map(str, torch.cuda.nccl.version()))}
    about["memory, GB"] = round(torch.cuda.get_device_properties(0).total_memory / 1e9, 1)
print(json.dumps(about | {"python": platform.python_version(), "cores": os.cpu_count()}))
"""
WITHOUT = (
    "torch finds no GPU here. On the second device, from the project's folder: "
    "python -m tests.second_device --gpus 2 -m minitrain.first_hour"
)
LAST = 40  # lines of a surprise's output that the report has
WITHIN = 0.01  # relative difference of two losses
NO = re.compile(r"^.*\sNO(?: \(fails on .*\))?\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """Find out whether all of this works on the GPUs of this machine, and how fast it is.

    Demos, trainings and comparisons run one after the other until one of them surprises. The report is
    runs/first_hour/report.md, and the same for programs report.json; it names no user, no machine and no folder.

    Attributes:
        only: Run these steps only; the report keeps what an earlier call has found of the others.
        list: Print the steps, and run none.
        go_on: Do not stop at a surprise.
        runs: The folder in which first_hour is made.
    """

    only: tuple[str, ...] = ()
    list: bool = False
    go_on: bool = False
    runs: str = "runs"


@dataclass
class Outcome:
    """What came of a step."""

    surprise: str = ""  # what is wrong
    left_out: str = ""  # why it was not run
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    output: str = ""  # the last lines of what it printed, of a surprise

    def __str__(self) -> str:
        return f"left out: {self.left_out}" if self.left_out else self.surprise or "as expected"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0 if nothing surprised, 1 if something did."""
    asked = tyro.cli(
        Command, prog="python -m minitrain.first_hour", args=arguments, config=(tyro.conf.FlagCreatePairsOff,)
    )
    folder = Path(asked.runs) / "first_hour"
    try:
        about = machine()
        planned = {step.name: step for step in steps(about["gpus"], real(about), str(folder / "runs"))}
        if unknown := set(asked.only) - planned.keys():
            raise ValueError(f"only={' '.join(sorted(unknown))} is no step here; --list shows all")
    except ValueError as error:
        complain(error)
        return 2
    chosen = [step for step in planned.values() if not asked.only or step.name in asked.only]
    if asked.list:
        print("\n".join(f"{step.name:18} {step.shows}\n{'':18} {step.typed}" for step in chosen))
        return 0
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    found = earlier(folder, about) if asked.only else {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    with suppress(KeyboardInterrupt):  # the report has what was done until then
        for number, step in enumerate(chosen, 1):
            print(f"{number} of {len(chosen)}, {step.name}: {step.shows}", flush=True)
            found[step.name] = outcome = take(step, about, found, folder)
            print(f"    {outcome} ({outcome.seconds:.0f} s)", flush=True)
            if outcome.surprise and not asked.go_on:
                break
    found = {name: found[name] for name in planned if name in found}
    rows = [{"step": name, "command": planned[name].typed} | asdict(each) for name, each in found.items()]
    (folder / "report.json").write_text(json.dumps({"about": about, "steps": rows}, indent=1) + "\n", "utf-8")
    (folder / "report.md").write_text(report(about, planned, found), "utf-8")
    print(f"\n{summary(planned, found)}\nto send: {folder / 'report.md'}; all that was printed: {folder / 'logs'}")
    return 0 if all(step.name in found and not found[step.name].surprise for step in chosen) else 1


def machine() -> dict[str, Any]:
    """What there is to run on, as torch tells in a process of its own; a ValueError without a GPU or torch."""
    asked = subprocess.run([sys.executable, "-c", ABOUT], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise ValueError(f"torch does not start: {asked.stderr.strip()}")
    about = json.loads(asked.stdout.splitlines()[-1])
    if not about["gpus"]:
        raise ValueError(WITHOUT)
    names = ("driver_version", "compute_mode", "mig.mode.current")
    told = nvidia_smi(f"--query-gpu={','.join(names)}").partition("\n")[0].split(", ") if real(about) else []
    about |= dict(zip(names, told, strict=True)) if len(told) == len(names) else {}
    with suppress(OSError):
        revision = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        about["minitrain"] = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    return about


def real(about: Mapping[str, Any]) -> bool:
    """Whether these are GPUs, and not the second device of the tests."""
    return "second device" not in about["gpu"]


def earlier(folder: Path, about: Mapping[str, Any]) -> dict[str, Outcome]:
    """What an earlier call has found on the same machine."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        told = json.loads((folder / "report.json").read_text("utf-8"))
        if told["about"] == about:
            return {row.pop("step"): Outcome(**row) for row in told["steps"] if row.pop("command")}
    return {}


def take(step: Step, about: Mapping[str, Any], found: Mapping[str, Outcome], folder: Path) -> Outcome:
    """Run a step and judge it; `found` has the steps before it."""
    if step.needs and not shutil.which(step.needs):
        return Outcome(left_out=f"there is no {step.needs}")
    if step.memory and (free := shutil.disk_usage("/dev/shm").free / 1e9) < step.memory:
        return Outcome(left_out=f"it needs {step.memory} GB of shared memory, and {free:.1f} GB are free")
    if step.shares and "Exclusive" in (mode := about.get("compute_mode", "")):
        return Outcome(left_out=f"in compute mode {mode} ranks cannot share a GPU")
    log, table = folder / "logs" / f"{step.name}.txt", folder / "table.json"
    words = [sys.executable if word == "python" else word for word in shlex.split(step.command)]
    if words[0] == "torchrun":  # which may be another Python's
        words[:1] = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    words += ["--json", str(table)] if "minitrain.benchmarks" in words else []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **step.environment}
    ended = watched(words, log, step.limit, environment, step.kills, step.at)
    text = log.read_text("utf-8", errors="replace")
    figures = read(step, text) | ({"GPUs of one process": ended.gpus} if ended.gpus else {})
    if "minitrain.train" in words and "GB of memory" in figures:
        figures[OVER] = round(1e9 * figures["GB of memory"] / planned_bytes(words), 3)
    if step.like in found and "tokens/s" in (before := found[step.like].figures).keys() & figures.keys():
        figures[f"speed over {step.like}'s"] = round(figures["tokens/s"] / before["tokens/s"], 3)
    if table.exists():
        figures |= {f"{row['what']}, to {row['against']}": row["ratio"] for row in json.loads(table.read_text("utf-8"))}
        table.unlink()
    surprise = surprise_of(step, ended, text, figures, found, real(about))
    end = text.splitlines() if step.name == "topology" else text.splitlines()[-LAST:] if surprise else []
    return Outcome(private(surprise), "", ended.seconds, figures, private("\n".join(end)))


def read(step: Step, text: str) -> dict[str, float]:
    """The figures that a command has printed."""
    found = {}
    for figure in step.figures:
        matches = list(re.finditer(figure.pattern, text))
        if matches:
            last = matches[-1].groups()
            found[figure.what] = float(last[-1].replace(",", "")) if last else len(matches)
    return found


def planned_bytes(words: list[str]) -> int:
    """What rank 0 of a training holds, by the dry run."""
    asked = command.read(words[words.index("minitrain.train") + 1 :])
    return sum(plan.predict(asked.model, asked.layout, asked.steps).held.values())


def surprise_of(
    step: Step, ended: Ended, text: str, figures: Mapping[str, float], found: Mapping[str, Outcome], on_gpus: bool
) -> str:
    """What is not as expected; "" if all is."""
    if ended.wrong:
        return ended.wrong
    if said := NO.search(text):
        return f"a claim does not hold: {' '.join(said[0].split())}"
    if (ended.status != 0) != step.fails:
        return f"it ended with status {ended.status}"
    if step.backend and not re.search(rf"\b{step.backend}(,| on) ", text):
        return f"its tensors were not carried by {step.backend}"
    if step.says and not re.search(step.says, text):
        return f"it did not say {step.says!r}"
    if step.kills and "after the kill" not in text:
        return "it ended before anything was killed"
    if step.like in found:
        losses = [figures.get("loss", 0.0), found[step.like].figures.get("loss", 0.0)]
        if not all(losses) or abs(losses[0] - losses[1]) > WITHIN * losses[1]:
            return f"its last loss is {losses[0]:g}, and that of {step.like} {losses[1]:g}"
    for bound in (*step.figures, Figure("GPUs of one process", NEVER, 1, 1)) if on_gpus else ():
        value = figures.get(bound.what, bound.least)
        if not bound.least <= value <= bound.most:
            return f"{bound.what} is {value:g}, and was expected between {bound.least:g} and {bound.most:g}"
    return ""


def private(text: str) -> str:
    """A text without names of folders, users and machines, and without addresses."""
    text = text.replace(f"{os.getcwd()}/", "")
    text = re.sub(r"(?<![\w./:])/(?:[\w.+@-]+/)+", "…/", text)
    text = re.sub(r"\b(?!127\.)\d{1,3}(?:\.\d{1,3}){3}\b", "(address)", text)
    for name, word in ((socket.gethostname(), "(machine)"), (getpass.getuser(), "(user)")):
        text = re.sub(rf"\b{re.escape(name)}\b", word, text)
    return text


def summary(planned: Mapping[str, Step], found: Mapping[str, Outcome]) -> str:
    """How many steps were as expected."""
    out = sum(bool(each.left_out) for each in found.values())
    surprises = [name for name, each in found.items() if each.surprise]
    told = f"{len(found) - out - len(surprises)} of {len(planned)} steps as expected, {out} left out"
    told += f", {len(planned) - len(found)} not run" if len(found) < len(planned) else ""
    return told + (f"; a surprise in {', '.join(surprises)}" if surprises else "; no surprise")


def report(about: Mapping[str, Any], planned: Mapping[str, Step], found: Mapping[str, Outcome]) -> str:
    """The report, in Markdown."""
    on = f"{about['gpus']} × {about['gpu']}"
    title = f"# The first hour on {on}" if real(about) else "# On the second device: no figure here is a GPU's"
    facts = " · ".join(f"{name} {value}" for name, value in about.items() if name not in ("gpus", "gpu") and value)
    lines = [title, "", f"{on} · {facts}", "", f"{summary(planned, found)}.", ""]
    lines += ["| step | what it shows | outcome | seconds | figures |", "|---|---|---|---:|---|"]
    for name, each in found.items():
        told = [f"{what}: {format(value, ',.0f' if value >= 1000 else '.4g')}" for what, value in each.figures.items()]
        line = f"| {name} | {planned[name].shows} | {each} | {each.seconds:.0f} | {'<br>'.join(told)} |"
        lines.append(line.replace("|  |", "| |"))
    for name, each in found.items():
        if each.output:
            lines += ["", f"## {name}: {each}", "", f"`{private(planned[name].typed)}`"]
            lines += ["", "```text", each.output, "```"]
    return "\n".join(lines) + "\n"
