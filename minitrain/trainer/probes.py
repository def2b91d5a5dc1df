"""Probes of a run (`minitrain.craft.probes`): read from a file, asked in any layout, and drawn.

    [[probe]]
    prompt = "one of th"
    continuation = "e "

    [[contrast]]
    prompt = "the statements are "
    right = "executed"
    wrong = "executes"

A probe's answer is the probability of the continuation; a contrast's is how much likelier the right one is, as the
logarithm of a ratio: above 0 where the model prefers it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from minitrain.composition.step import Training
from minitrain.data.tokenizer import Tokenizer
from minitrain.trainer.config import toml
from minitrain.trainer.evaluation import log_probability
from minitrain.trainer.metrics import by_name, literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"probe": ("continuation",), "contrast": ("right", "wrong")}


class Probe(NamedTuple):
    """A question to the model, in tokens."""

    name: str  # as its answers are called
    prompt: list[int]
    ends: list[list[int]]  # the continuation; or the right one and the wrong one

    def ask(self, training: Training) -> float:
        """The answer, the same on all ranks; every rank calls it."""
        first, *other = (log_probability(training, self.prompt, end) for end in self.ends)
        return first - other[0] if other else math.exp(first)


def ask(training: Training, probes: Sequence[Probe]) -> dict[str, dict[str, float]]:
    """All answers, under "probes" and "contrasts"; every rank calls it."""
    answers: dict[str, dict[str, float]] = {}
    for probe in probes:
        answers.setdefault("contrasts" if probe.ends[1:] else "probes", {})[probe.name] = probe.ask(training)
    return answers


def read(file: Path, tokenizer: Tokenizer, positions: int) -> list[Probe]:
    """The probes in a TOML file, for a model whose longest sequence has so many `positions`.

    Raises:
        ValueError: There is no such file, or what it has is no probe, or too long: says which, and what would do.
    """
    tables = toml(file, "probes")
    if stray := tables.keys() - KINDS.keys():
        raise ValueError(f"{file} has {', '.join(sorted(stray))}; use [[probe]] and [[contrast]]")
    found: dict[str, Probe] = {}
    for kind, rows in tables.items():
        # With single brackets TOML makes no list of it.
        for number, row in enumerate(rows if isinstance(rows, list) else [rows], 1):
            where = f"{file}: [[{kind}]] {number}"
            probe = _probe(where, kind, row, tokenizer, positions)
            # The log has answers by name.
            if probe.name in found:
                raise ValueError(f"{where} is the second one of {probe.name!r}; each needs another text")
            found[probe.name] = probe
    if not found:
        raise ValueError(f"{file} has no probe; use [[probe]] and [[contrast]]")
    return [*found.values()]


def _probe(where: str, kind: str, row: Any, tokenizer: Tokenizer, positions: int) -> Probe:
    names = ("prompt", *KINDS[kind])
    if not isinstance(row, dict) or row.keys() != {*names} or not all(row[name] for name in names):
        raise ValueError(f"{where} must have {', '.join(names[:-1])} and {names[-1]}, each a text, and nothing else")
    if not all(isinstance(row[name], str) for name in names):
        raise ValueError(f"{where}: {', '.join(names)} must be texts in quotes")
    prompt, *ends = (tokenizer.encode([row[name].encode()])[0].tolist() for name in names)
    if len({len(end) for end in ends}) > 1:
        raise ValueError(
            f"{where}: right={row['right']!r} has {len(ends[0])} tokens and wrong={row['wrong']!r} has {len(ends[1])}; "
            "use two of equal length, since a shorter one is nearly always likelier"
        )
    # The last token is only predicted, so there may be one more than positions.
    if (longest := len(prompt) + len(ends[0])) > positions + 1:
        raise ValueError(f"{where} has {longest} tokens, and positions={positions} take {positions + 1}; shorten it")
    return Probe(row["prompt"] + "|" + "/".join(row[name] for name in names[1:]), prompt, ends)


def draw(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """The answers over the steps, by lines of `metrics.jsonl`: probabilities on a log scale, contrasts around 0."""
    from matplotlib.figure import Figure

    kinds = [kind for kind in ("probes", "contrasts") if any(kind in line for line in lines)]
    figure = Figure(figsize=(7, 2.6 * len(kinds)), layout="constrained", facecolor="white")
    for axes, kind in zip(figure.subplots(len(kinds), squeeze=False)[:, 0], kinds, strict=True):
        for name, points in by_name(lines, kind).items():
            axes.plot(*zip(*points, strict=True), marker=".", label=literal(name))
        if kind == "contrasts":
            axes.axhline(0, color="#999999", linestyle=":")
            axes.set_ylabel("right over wrong,\nlog of the ratio")
        else:
            axes.set_yscale("log")
            axes.set_ylabel("probability")
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
