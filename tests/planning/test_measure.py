"""A layout that is tried: how the trainer is started, and what is made of its log."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from minitrain.composition.settings import Layout, Model, Steps
from minitrain.costs.roofline import MACHINES
from minitrain.planning.full import measure, published
from minitrain.planning.full.plan_time import shape_of
from minitrain.planning.full.time_model import any_step_time, fitted

pytestmark = pytest.mark.usefixtures("without_shapes")  # a comparison simulates many pipelines
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


def test_a_training_that_fails_is_told_in_its_last_words(trainer):
    trainer(fails="Traceback\nno memory\n")
    with pytest.raises(ValueError, match="measure: .* did not run: no memory"):
        measure.tokens_per_second(Model("tiny"), Layout(), STEPS)


@pytest.fixture
def few(monkeypatch):
    """A few of the published runs in place of all, whose prediction takes long."""
    real = published.read
    some = real()[:4]
    monkeypatch.setattr(published, "read", lambda path=None: real(path) if path else some)


LAYOUTS = [
    Layout(dp=2, tp=2, sequence_parallel=True, zero=1, microbatches=2, recompute="full"),
    Layout(dp=1, pp=2, schedule="interleaved", chunks=2, microbatches=4),
    Layout(dp=2, pp=2, schedule="zb-v", microbatches=4, recompute="selective"),
    Layout(dp=2, cp=2, cp_mode="ulysses", zero=3),
]


def test_a_row_is_read_as_what_was_measured(few, tmp_path, capsys):
    """Every layout comes back, its speed too, and it is shown next to what is predicted for it."""
    own, model = tmp_path / "own.csv", Model("gpt2", layers=4, dropout=0.1)
    steps = Steps(batch=16, dtype="bfloat16", reduce_dtype="float32")
    for number, layout in enumerate(LAYOUTS, 1):
        assert measure.last_number(own) == number - 1
        measure.append(own, measure.row(model, layout, steps, 4, "mine", MACHINES["H100"], 1000.0 * number))
    found = published.read(own)
    assert [run.number for run in found] == [1, 2, 3, 4]
    for number, (run, layout) in enumerate(zip(found, LAYOUTS, strict=True), 1):
        assert run.layout == layout and run.usable and run.per_node == 4
        assert shape_of(run.model) == shape_of(model)._replace(kv_heads=12, inner=4 * 768)
        assert run.seconds == pytest.approx(16 * 1024 / (1000 * number))
        cluster = fitted(MACHINES["H100"], published.Fabric(4))
        assert published.seconds(run) == pytest.approx(any_step_time(model, layout, steps, cluster).step)
    assert published.main(published.Command(runs=own)) == 0
    assert capsys.readouterr().out.count("measured here, gpt2, 4 × mine, dp2×tp2") == 1


@pytest.mark.parametrize(
    ("model", "steps", "machine", "why"),
    [
        (Model("tiny"), Steps(dtype="bfloat16"), None, "the figures of CPU are unknown"),
        (Model("tiny"), Steps(dtype="float32"), MACHINES["H100"], "this was in float32"),
        (Model("tiny", experts=4), Steps(dtype="bfloat16"), MACHINES["H100"], "no place for experts"),
        (Model("tiny", head_size=16), Steps(dtype="bfloat16"), MACHINES["H100"], "no place for experts"),
    ],
)
def test_a_run_that_nothing_is_predicted_for_is_listed_and_says_why(few, tmp_path, capsys, model, steps, machine, why):
    own = tmp_path / "own.csv"
    measure.append(own, measure.row(model, Layout(), steps, 8, "CPU", machine, 1234.0))
    (run,) = published.read(own)
    assert not run.usable and why in run.note
    assert published.main(published.Command(runs=own)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no figure 1,234 measured here, tiny, 1 × CPU, one device" in shown and why in shown


def test_the_gpu_at_hand_is_found_in_the_table(monkeypatch):
    names = {"NVIDIA A100-SXM4-40GB": "A100 40 GB", "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H200": "H200"}
    unknown = "NVIDIA H100 PCIe", "NVIDIA GH200 480GB", "NVIDIA A100 80GB PCIe"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for name in (*names, *unknown):
        monkeypatch.setattr("torch.cuda.get_device_name", lambda name=name: name)
        assert measure.gpu_at_hand() == (names.get(name, name), MACHINES.get(names.get(name, "")))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert measure.gpu_at_hand() == ("CPU", None)
