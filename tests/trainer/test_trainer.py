"""A run from beginning to end: interrupted, resumed, refused, stopped, and what it writes."""

from __future__ import annotations

import errno
import json
import os
import resource
import warnings
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch

from minitrain.checkpointing.checkpoint import load
from minitrain.checkpointing.full import manifest
from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.lessons.trainer.trainer import gathered
from minitrain.train import train
from minitrain.trainer import launch, metrics
from minitrain.trainer.identity import described, different
from minitrain.trainer.refused import Refused
from minitrain.trainer.trainer import Trainer
from tests.drawn import first
from tests.trainer.conftest import apart

MODEL = Model(layers=2, hidden=16, heads=2, positions=16, dropout=0.1)
STEPS = Steps(steps=4, batch=4, warmup=1, lr=1e-2, dtype="float64")


def asked(folder, layout=None, name="run", model=MODEL, **changes):
    """Settings of a small run; `changes` are of its steps or of what it writes."""
    steps = {key: value for key, value in changes.items() if hasattr(STEPS, key)}
    run = {key: value for key, value in changes.items() if key not in steps}
    run = Run(name=name, runs=str(folder), sample=0, evaluate_every=0, **run)
    return Settings(model, layout or Layout(), replace(STEPS, **steps), run)


def do(world, settings, stop_at=None):
    """A whole run: its status, losses, state as of one device, and what it told."""
    told = []

    def asked_to_stop():
        return stop_at is not None and world.rank == world.size - 1 and trainer.done >= stop_at

    trainer = Trainer(world, settings, asked_to_stop, tell=told.append)
    status = train(trainer)
    return (
        status,
        [report.loss for report in trainer.reports],
        gathered(trainer),
        "\n".join(map(str, told)),
        trainer.done,
    )


@pytest.fixture(scope="module")
def whole(ranks, tmp_path_factory):
    """A run in one go on one device, with a checkpoint in the middle."""
    folder = tmp_path_factory.mktemp("whole")
    ((status, *found),) = ranks(1).run(do, asked(folder, save_every=2, keep=3))
    assert status == 0
    return folder / "run", *found


@pytest.mark.parametrize(
    "layout",
    first(
        [Layout(dp=2, zero=3), Layout(dp=2, zero=1), Layout(tp=2, sequence_parallel=True), Layout(pp=2, microbatches=2)]
        + [Layout(cp=2, zero=1)]
    ),
    ids=str,
)
def test_resumed_in_another_layout(ranks, whole, tmp_path, layout):
    _, losses, state, _, _ = whole
    settings = asked(tmp_path, save_every=2)
    ranks(1).run(do, settings, 2)  # stopped after two steps
    found = ranks(2).run(do, replace(settings, layout=layout, run=replace(settings.run, resume=True)))
    for status, after, resumed, _, done in found:
        assert (status, done) == (0, 4)
        assert after == pytest.approx(losses[2:], abs=1e-12)
        # The optimizer's states, too; forgetting how many steps it has done changes weights in the fourth digit.
        assert state.keys() == resumed.keys() and apart(state, resumed) < 1e-9
    assert "saved by one device" in found[0][3] and not found[1][3], "only rank 0 tells"
    lines = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines if "step" in line] == [1, 2, 3, 4]
    assert [line.get("resumed at") for line in lines if "settings" in line] == [None, 2]


def test_what_a_run_leaves(whole):
    folder, losses, _, told, _ = whole
    names = {path.name for path in folder.iterdir()}
    assert names == {"checkpoints", "loss.svg", "metrics.jsonl", "run.toml", "trace.json"}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"step-00000002", "step-00000004"}
    first, *lines = metrics.read(folder / "metrics.jsonl")
    assert first["settings"]["model"]["hidden"] == 16
    assert [line["loss"] for line in lines] == losses
    assert "validation" in lines[-1] and "validation" not in lines[0]
    assert "held out" in told and "2 steps" not in told
    spans = json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert {"forward", "backward", "optimizer"} <= {span["name"] for span in spans}
    assert "<svg" in (folder / "loss.svg").read_text()


def test_a_stop_that_one_rank_hears_of(ranks, tmp_path):
    """Rank 1 is asked; both end after the same step, save, and have done well."""
    found = ranks(2).run(do, asked(tmp_path, Layout(dp=2), steps=100), 3)
    assert [(status, done) for status, _, _, _, done in found] == [(0, 3), (0, 3)]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000003"]
    assert "ended after step 3 of 100: saved" in found[0][3]


def test_a_loss_that_is_no_number(ranks, tmp_path):
    """All ranks stop in one step; the weights before it are saved, but not where --resume would take them from."""
    settings = asked(tmp_path, Layout(dp=2), lr=1e200, clip=0.0, optimizer="sgd", steps=9)
    found = ranks(2).run(blow_up, settings)
    assert [(status, same) for status, _, same, _ in found] == [(1, True)] * 2
    done, told = found[0][1], "\n".join(map(str, found[0][3]))
    assert f"step {done}: loss" in told and "samples" in told
    assert f"{tmp_path}/run/not-finite/step-{done:08d}" in told
    assert not (tmp_path / "run" / "checkpoints").exists()


def blow_up(world, settings):
    """A run until a loss is no number, and whether the weights that it saves then are those that it has."""
    told = []
    trainer = Trainer(world, settings, tell=told.append)
    status = train(trainer)
    before, state = gathered(trainer), trainer.saving.state()
    for sharded in state.values():
        for shard in sharded.shards:
            shard.tensor.detach().zero_()
    load(settings.run.folder / "not-finite" / f"step-{trainer.done:08d}", state)
    return (
        status,
        trainer.done,
        all(torch.equal(before[name], value) for name, value in gathered(trainer).items()),
        told,
    )


def refused(world, settings):
    with pytest.raises(Refused) as error:
        train(Trainer(world, settings, tell=lambda text: None))
    return str(error.value)


def test_another_training_is_refused(ranks, whole, tmp_path):
    resume = Run(name=whole[0].name, runs=str(whole[0].parent), resume=True)
    settings = Settings(replace(MODEL, hidden=32, positions=8), Layout(dp=2), replace(STEPS, seed=7, lr=1.0), resume)
    for message in ranks(2).run(refused, settings):
        assert message.startswith(f"{whole[0]}/checkpoints/step-00000004 is of another training: ")
        assert "hidden=16 there and 32 here; " in message  # and what follows from it
        assert message.endswith("positions=16 there and 8 here; seed=0 there and 7 here")
    (tmp_path / "text").write_bytes(b"another text " * 100)
    settings = Settings(MODEL, Layout(), replace(STEPS, data=str(tmp_path / "text")), resume)
    (message,) = ranks(1).run(refused, settings)
    assert "data=reference there" in message and "not the same text" in message
    settings = Settings(MODEL, Layout(dp=2), replace(STEPS, data="no/such"), Run(runs=str(tmp_path)))
    assert all("data='no/such' is no file" in message for message in ranks(2).run(refused, settings))


def test_what_a_resume_may_change():
    saved = described(Settings(), "sum")
    steps = Steps(data="elsewhere", steps=9, lr=1.0, decay="linear", warmup=0, weight_decay=0, clip=0, compile=True)
    layout, written = Layout(dp=4, zero=1, microbatches=2), Run(name="other", resume=True)
    model = Model(dropout=0.1, router="top_k", layers=4)  # of the preset, and a router that nobody asks
    assert different(json.loads(json.dumps(saved)), described(Settings(model, layout, steps, written), "sum")) == []


def test_damaged_checkpoints(ranks, tmp_path):
    settings = asked(tmp_path, save_every=2)
    ranks(1).run(do, settings)
    resume = replace(settings, run=replace(settings.run, resume=True))
    folder = tmp_path / "run" / "checkpoints"
    file = shortened(folder, 4)
    ((status, losses, _, told, _),) = ranks(1).run(do, resume)
    assert (status, len(losses)) == (0, 2), "from step 2"
    assert "note: " in told and str(file) in told
    for step in (2, 4):
        shortened(folder, step)
    (message,) = ranks(1).run(refused, resume)
    assert message == f"{folder} has no checkpoint that is complete and undamaged"


def shortened(folder, step):
    file = next((folder / f"step-0000000{step}").glob("__0_*"))
    file.write_bytes(file.read_bytes()[:-1])
    return file


def run_on_full_disk(world, settings, code):
    """The checkpoint after step 2 cannot be written; later ones can."""
    write = manifest.write

    def full_at_first(path, content):
        if content.step == 2:
            raise OSError(code, os.strerror(code))
        write(path, content)

    with mock.patch.object(manifest, "write", full_at_first):
        return do(world, settings)


@pytest.mark.parametrize("code", (errno.ENOSPC, errno.EROFS))
def test_a_full_disk_and_a_read_only_folder(ranks, tmp_path, code):
    found = ranks(2).run(run_on_full_disk, asked(tmp_path, Layout(dp=2), save_every=1, keep=9, steps=3), code)
    assert {status for status, *_ in found} == {0}
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == ["step-00000001", "step-00000003"]
    assert "note: " in found[0][3] and f"step-00000002 could not be saved: [Errno {code}] " in found[0][3]


LAYOUTS = [Layout(pp=2, microbatches=2), Layout(tp=2), Layout(dp=2, zero=2), Layout(cp=2)]


def test_metrics_after_a_kill(tmp_path):
    """Lines after the checkpoint are those of steps that will be done again; half a line is none."""
    first = metrics.Metrics(tmp_path, {"a": 1})
    for step in (1, 2, 3):
        first.write({"step": step, "loss": 1.0})
    first.close()
    with open(tmp_path / metrics.NAME, "a") as file:
        file.write('{"step": 4, "lo')
    metrics.Metrics(tmp_path, {"a": 2}, done=2).close()
    assert metrics.read(tmp_path / metrics.NAME) == [
        {"settings": {"a": 1}},
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 1.0},
        {"settings": {"a": 2}, "resumed at": 2},
    ]


def metrics_on_a_full_disk(world, folder, full):
    """Files of at most `full` bytes, for a run that goes on after its first step; what is told."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, before[1]))
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            made = metrics.Metrics(folder, {}, done=1)
            for step in (2, 3):
                made.write({"step": step})
            made.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    return [str(each.message) for each in told]


@pytest.mark.parametrize(("full", "kept"), [(0, [1]), (60, [1, None, 2])])
def test_metrics_on_a_full_disk(ranks, tmp_path, full, kept):
    """What was there stays, with the lines that fit."""
    (tmp_path / metrics.NAME).write_text('{"step": 1}\n')
    ((told,),) = ranks(1).run(metrics_on_a_full_disk, tmp_path, full)
    assert "metrics.jsonl is not written any more: " in told and "File too large" in told
    assert [line.get("step") for line in metrics.read(tmp_path / metrics.NAME)] == kept
    assert [path.name for path in tmp_path.iterdir()] == [metrics.NAME]


NO_NAMES = ["", "..", "../x", "/tmp/x", "a\\b", "a\0b", "\x1b[2J", "\udc80"]


def test_refused_before_ranks_are_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/old/checkpoints/step-00000010").mkdir(parents=True)
    Path("runs/old/checkpoints/step-00000012.unfinished").mkdir()
    Path("runs/old/run.toml").write_text("")
    for run, message in (
        (Run(name="old"), "runs/old has a run already, with step-00000010: go on with --resume"),
        *((Run(name=name), f"name={name!r} is no name of a folder in runs; use a plain one") for name in NO_NAMES),
        (Run(load="no.safetensors"), "load='no.safetensors' is no file"),
        (Run(export="no/such/w.safetensors"), "lies in no folder"),
        (Run(resume=True, overwrite=True), "leave out overwrite"),
        (Run(keep=0), "keep=0 must be at least 1"),
        *((Run(**{name: -1}), f"{name}=-1 must be at least 0") for name in ("save_every", "sample", "flash_every")),
        (Run(save_every=1 << 64), "save_every=18446744073709551616 has more than 64 bits"),
        (Run(export="runs/old/run.toml"), "exists and may be no weights; name another file, such as gpt.safetensors"),
        (Run(export="runs"), "export='runs' is a folder; name a file in it"),
    ):
        with pytest.raises(ValueError) as error:
            launch.refuse(Settings(run=run))
        assert message in str(error.value)
    assert [path.name for path in Path("runs").iterdir()] == ["old"]
    begun = Run(name="old", resume=True, load="no longer.safetensors")  # it has weights of its own
    for run in (begun, Run(name="old", overwrite=True), Run(name="new"), Run(resume=True)):
        launch.refuse(Settings(run=run))


def test_links_in_a_runs_folder_are_not_followed(ranks, whole, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "other").write_text("somebody's")
    for name in ("metrics.jsonl", "trace.json", "loss.svg"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "other")
    (tmp_path / "run" / "checkpoints").symlink_to(whole[0] / "checkpoints")
    ranks(1).run(do, asked(tmp_path, overwrite=True, steps=1))
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000001"]
    assert not any(path.is_symlink() for path in (tmp_path / "run").iterdir())
    assert (tmp_path / "other").read_text() == "somebody's"
    assert (whole[0] / "checkpoints" / "step-00000004" / "manifest.json").exists()


def test_resume_where_there_is_nothing_begins(ranks, tmp_path):
    ((status, losses, _, told, _),) = ranks(1).run(do, asked(tmp_path, resume=True, steps=1))
    assert (status, len(losses)) == (0, 1)
    assert "has no checkpoint: this is the run's beginning" in told
    ((status, losses, _, told, _),) = ranks(1).run(do, asked(tmp_path, resume=True, steps=1))
    assert (status, losses) == (0, []) and "all of its 1 steps are done" in told
