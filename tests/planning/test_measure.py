"""A layout that is tried: how the trainer is started, and what is made of its log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.planning.full import measure

STEPS = Steps(batch=6)


@pytest.fixture
def trainer(monkeypatch):
    """In place of the trainer: writes a log of steps that took so long, or fails with what it says."""

    def replace(*seconds: float, fails: str = ""):
        started = []

        def run(words, **_):
            started.append(words)
            folder = Path(words[words.index("--runs") + 1]) / words[words.index("--name") + 1]
            folder.mkdir(parents=True)
            lines = [{"ranks": 2}, *({"step": n, "seconds": each} for n, each in enumerate(seconds, 1)), {"sample": ""}]
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            return subprocess.CompletedProcess(words, bool(fails), "", fails)

        monkeypatch.setattr(measure.subprocess, "run", run)
        return started

    return replace


def test_the_first_two_steps_are_not_counted(trainer):
    started = trainer(90.0, 80.0, 1.0, 3.0, 2.0)
    model = Model("tiny", positions=50)
    assert measure.tokens_per_second(model, Layout(dp=2), STEPS, 5) == 6 * 50 / 2.0
    assert measure.tokens_per_second(model, Layout(tp=2), STEPS, 5) == 6 * 50 / 2.0
    for words, axis in zip(started, ("--dp", "--tp"), strict=True):
        given = {word: then for word, then in zip(words, words[1:], strict=False)}
        assert [given[name] for name in (axis, "--ranks", "--steps", "--batch")] == ["2", "2", "5", "6"]
