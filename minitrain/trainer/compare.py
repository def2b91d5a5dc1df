"""The command line of minitrain.compare: what two runs have in common, and where they part.

It reads their settings, the numbers of their steps (`metrics.jsonl`) and, where both were run with `--fingerprints`,
the checksums of their tensors. As with `diff`, the exit status is 0 if no step or tensor differs
and 1 if one does, whatever the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from minitrain.comm.terminal import reader_has_closed, shown
from minitrain.composition.settings import Settings
from minitrain.trainer import config, metrics
from minitrain.trainer.command import refused

NUMBERS = ("lr", "loss", "norm")  # of a step, in the order in which they come to be


@dataclass(frozen=True)
class Compare:
    """Find where two runs part that should be the same: the first step that differs, and in it the first tensor.

    Attributes:
        one: A run's folder, such as runs/train.
        other: The other's.
    """

    one: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    other: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    asked = tyro.cli(Compare, prog="python -m minitrain.compare", args=arguments)
    try:
        found, same = compare(Path(asked.one), Path(asked.other))
        print(shown("\n".join(found)), flush=True)
    except BrokenPipeError:
        return reader_has_closed()
    except (ValueError, OSError) as error:
        return refused(error)
    return 0 if same else 1


def compare(one: Path, other: Path) -> tuple[list[str], bool]:
    """What two runs have in common and where they part, in lines; and whether their steps are the same.

    Raises:
        ValueError: A folder is no run's, or they have no step in common.
    """
    a, b = (settings_of(folder) for folder in (one, other))
    steps = [
        {line["step"]: line for line in metrics.read(each / metrics.NAME) if "step" in line} for each in (one, other)
    ]
    # Either may have begun later or ended earlier.
    common = sorted(steps[0].keys() & steps[1].keys())
    if not common:
        raise ValueError(f"{one} and {other} have no step in common; give two runs that have begun")
    found = [f"settings that differ: {', '.join(different(a, b)) or 'none'}"]
    # In the order in which numbers come to be, because all after the first one may follow from it.
    # All bits count: the question is where two runs part, and not how far.
    pairs = ((step, name) for step in common for name in NUMBERS)
    parts = next(((step, name) for step, name in pairs if steps[0][step].get(name) != steps[1][step].get(name)), None)
    if parts is None:
        found.append(f"steps {common[0]} to {common[-1]}: the same loss, norm and learning rate")
    else:
        step, name = parts
        values = " and ".join(f"{each[step].get(name, float('nan'))!r}" for each in steps)
        found.append(f"step {step}: the first whose {name} differs, {values}")
    if a.layout.ranks != b.layout.ranks or a.layout != b.layout:
        found.append("layouts differ, so ranks hold other parts of the tensors: no single tensor can be named")
        return found, parts is None
    if not (a.run.fingerprints and b.run.fingerprints):
        found.append("to find the first tensor that differs, run both again with --fingerprints")
        return found, parts is None
    # Here, because it imports torch, and numbers are compared without it.
    from minitrain.trainer.fingerprints import where_they_part

    if tensor := where_they_part(one, other, a.layout.ranks):
        step, name, rank = tensor
        found.append(f"step {step}: the first tensor that differs is {name}" + (f", on rank {rank}" * (rank > 0)))
    else:
        found.append("all tensors of these steps have the same bits")
    return found, parts is None and tensor is None


def different(one: Settings, other: Settings) -> Iterator[str]:
    """The settings of model, layout and steps that differ."""
    for group in ("model", "layout", "steps"):
        mine, theirs = vars(getattr(one, group)), vars(getattr(other, group))
        for name in mine:
            if mine[name] != theirs[name]:
                yield f"{name} ({mine[name]} and {theirs[name]})"


def settings_of(folder: Path) -> Settings:
    """Those that a run has left in its folder."""
    if not (folder / config.NAME).is_file():
        near = Path("runs") / folder
        what = f"did you mean {near}?" if (near / config.NAME).is_file() else "give a run's folder, such as runs/train"
        raise ValueError(f"{folder} has no {config.NAME}; {what}")
    return config.read(folder / config.NAME, Settings())
