"""Spikes, loss by source, probes and comparisons of runs: the same in every layout, and as on one device."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from minitrain.composition.settings import Layout
from minitrain.lessons.trainer.trainer import gathered
from minitrain.train import train
from minitrain.trainer import compare, metrics
from minitrain.trainer.trainer import Trainer
from tests.drawn import first, part
from tests.trainer.conftest import apart
from tests.trainer.test_trainer import asked

BATCH, BAD = 4, 40  # samples in a step, and the batch that is no text
LAYOUTS = {
    1: [Layout()],
    2: [
        Layout(dp=2, zero=1),
        Layout(dp=2, zero=3),
        Layout(tp=2, sequence_parallel=True),
        Layout(pp=2, microbatches=2),
        Layout(cp=2),
    ],
    4: [Layout(dp=2, pp=2, microbatches=2), Layout(dp=2, tp=2, zero=1)],
}
CASES = first(((ranks, layout) for ranks, layouts in LAYOUTS.items() for layout in layouts), 2)
DRAWN = [CASES[1], *part(CASES[2:], 1, "layouts")]


class Spoilt:
    """Samples of which some batches are bytes that the text never has."""

    def __init__(self, samples, batches):
        self.samples, self.seq, self.batches = samples, samples.seq, batches

    def take(self, numbers):
        inputs, targets = self.samples.take(numbers)
        for row, number in enumerate(numbers):
            if number // BATCH in self.batches:
                inputs[row], targets[row] = 200 + number % 8, 210 + number % 8
        return inputs, targets


class Without:
    """Samples that never had some batch."""

    def __init__(self, samples, batch):
        self.samples, self.seq, self.batch = samples, samples.seq, batch

    def take(self, numbers):
        return self.samples.take([number + BATCH * (number // BATCH >= self.batch) for number in numbers])


def do(world, settings, spoilt=(), without=None, stop_at=None, nan_at=None):
    """A run on samples some of which are spoilt, or on those that never had a batch."""
    told = []

    def stop():
        return stop_at is not None and trainer.done >= stop_at

    trainer = Trainer(world, settings, stop, tell=told.append)
    for holder, name in ((trainer.samples, "samples"), (trainer, "known")) if spoilt or without is not None else ():
        before = getattr(holder, name)
        setattr(holder, name, Spoilt(before, spoilt) if without is None else Without(before, without))
    if nan_at is not None:
        begin = trainer.begin

        def with_nan(training):
            begin(training)
            training.part.loss.register_forward_hook(
                lambda module, inputs, mean: mean * math.nan if trainer.done == nan_at and module.training else mean
            )

        trainer.begin = with_nan
    status = train(trainer)
    return status, [report.loss for report in trainer.reports], gathered(trainer), "\n".join(told), trainer.left_out


@pytest.fixture(scope="module")
def undisturbed(ranks, tmp_path_factory):
    """A run on one device whose data never had the bad batch."""
    ((_, losses, state, _, _),) = ranks(1).run(do, asked(tmp_path_factory.mktemp("x"), steps=46), (), BAD)
    return losses, state


@pytest.mark.parametrize("count, layout", [CASES[0], *DRAWN], ids=str)
def test_rewound_as_if_the_samples_had_never_been(ranks, undisturbed, tmp_path, count, layout):
    losses, state = undisturbed
    settings = asked(tmp_path, layout, steps=46, save_every=10, on_spike="rewind")
    found = ranks(count).run(do, settings, (BAD,))
    for status, _, after, _, left_out in found:
        assert (status, left_out) == (0, [BAD * BATCH])
        assert apart(state, after) < 1e-9
    assert "step 41: loss" in found[0][3] and "back to step 40, without samples 160 to 163" in found[0][3]
    lines = [line for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if "step" in line]
    assert [line["step"] for line in lines] == [*range(1, 47)]
    assert [line["loss"] for line in lines] == pytest.approx(losses, abs=1e-12)
    about = json.loads((tmp_path / "run" / "spikes" / "step-00000041.json").read_text())
    assert sum(each["loss"] for each in about["samples"]) / BATCH == pytest.approx(about["loss"], rel=1e-6)
    assert math.hypot(*about["norm of each layer"].values()) == pytest.approx(about["norm"], rel=1e-9)
    assert sorted(each["number"] for each in about["samples"]) == [160, 161, 162, 163]
    assert about["loss"] > about["limit"]


def test_it_gives_up_after_two_rewinds(ranks, tmp_path):
    settings = asked(tmp_path, Layout(dp=2), steps=46, save_every=40, on_spike="rewind")
    found = ranks(2).run(do, settings, range(BAD, 46))
    assert [status for status, *_ in found] == [1, 1]
    assert "2 of 2 rewinds" in found[0][3] and "a spike after 2 rewinds to step 40" in found[0][3]
    assert "saved; --resume goes on from there" in found[0][3]


@pytest.mark.slow("two runs of 46 steps, saved at each")
@pytest.mark.parametrize("spoilt, nan_at", part([((BAD,), None), ((), BAD)], 1, "bad batches"), ids=["garbage", "nan"])
def test_skipped(ranks, tmp_path, spoilt, nan_at):
    """The step counts, and changes nothing; in the optimizer's eyes there was none."""
    settings = asked(tmp_path, steps=46, save_every=1, keep=9, on_spike="skip")
    one = ranks(1).run(do, settings, spoilt, None, None, nan_at)[0]
    two = ranks(2).run(
        do, replace(settings, layout=Layout(dp=2), run=replace(settings.run, name="two")), spoilt, None, None, nan_at
    )
    assert [status for status, *_ in (one, *two)] == [0, 0, 0]
    assert all(apart(one[2], each[2]) < 1e-9 for each in two)
    lines = [line for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if "step" in line]
    assert [line["step"] for line in lines if line["spike"]] == [BAD + 1]

    def kept(step):
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:08d}"
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix == ".distcp"}

    before, after = kept(BAD), kept(BAD + 1)
    assert before == after and before, "no tensor has changed"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Two sources, one much easier than the other."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "easy").write_bytes(b"abcdefgh" * 1000)
    (folder / "hard").write_bytes(bytes(torch.randint(1, 256, (8000,), generator=torch.Generator().manual_seed(0))))
    return f"easy=0.4:{folder}/easy", f"hard=0.6:{folder}/hard"


@pytest.fixture(scope="module")
def by_source(ranks, texts, tmp_path_factory):
    """On one device, the lines of a run's log."""
    folder = tmp_path_factory.mktemp("mix")
    assert ranks(1).run(do, asked(folder, steps=12, mix=texts))[0][0] == 0
    return [line for line in metrics.read(folder / "run" / "metrics.jsonl") if "step" in line]


@pytest.mark.parametrize("count, layout", DRAWN, ids=str)
def test_loss_by_source(ranks, texts, by_source, tmp_path, count, layout):
    assert ranks(count).run(do, asked(tmp_path, layout, steps=12, mix=texts))[0][0] == 0
    lines = [line for line in metrics.read(tmp_path / "run" / "metrics.jsonl") if "step" in line]
    for mine, theirs in zip(lines, by_source, strict=True):
        assert mine["sources"] == pytest.approx(theirs["sources"], abs=1e-6)
    assert lines[-1]["validation sources"] == pytest.approx(by_source[-1]["validation sources"], abs=1e-6)
    for name, losses in by_source[-1]["validation positions"].items():
        assert lines[-1]["validation positions"][name] == pytest.approx(losses, abs=1e-6)
        assert sum(losses) / len(losses) == pytest.approx(lines[-1]["validation sources"][name], abs=1e-6)
    assert (tmp_path / "run" / "sources.svg").is_file()


PROBES = """
[[probe]]
prompt = "one of th"
continuation = "e "

[[probe]]
prompt = "one of th"
continuation = "q "

[[contrast]]
prompt = "one of th"
right = "e "
wrong = "q "
"""


def test_probes_of_a_run(ranks, tmp_path):
    file = tmp_path / "probes.toml"
    file.write_text(PROBES)
    assert ranks(1).run(do, asked(tmp_path, probes=str(file)))[0][0] == 0
    last = metrics.read(tmp_path / "run" / "metrics.jsonl")[-1]
    right, wrong = (last["probes"].pop(f"one of th|{end} ") for end in "eq")
    assert not last["probes"] and 0 < right < 1 and (tmp_path / "run" / "probes.svg").is_file()
    assert last["contrasts"] == {"one of th|e /q ": pytest.approx(math.log(right / wrong))}


def fingerprinted(world, settings, bug=None):
    """A run, in one of whose steps a gradient is changed."""
    trainer = Trainer(world, settings, tell=lambda text: None)
    begin = trainer.begin

    def with_bug(training):
        begin(training)
        name, step = bug
        synchronize = training.gradients.synchronize

        def changed():
            synchronize()
            for each, piece in training.gradients.gradient_pieces():
                if each == name and trainer.done == step - 1:
                    piece.mul_(1 + 1e-12)

        training.gradients.synchronize = changed

    if bug:
        trainer.begin = with_bug
    return train(trainer)


@pytest.mark.parametrize("count, layout", [CASES[0], *DRAWN], ids=str)
def test_compare_names_step_and_tensor(ranks, tmp_path, count, layout, capsys):
    settings = asked(tmp_path, layout, fingerprints=True, name="one")
    assert ranks(count).run(fingerprinted, settings)[0] == 0
    for name, bug in (("same", None), ("bug", ("blocks.1.mlp.up.weight", 3))):
        assert ranks(count).run(fingerprinted, replace(settings, run=replace(settings.run, name=name)), bug)[0] == 0
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "same")]) == 0
    assert "all tensors of these steps have the same bits" in capsys.readouterr().out
    assert compare.main([str(tmp_path / "one"), str(tmp_path / "bug")]) == 1
    assert "step 3: the first tensor that differs is gradient blocks.1.mlp.up.weight" in capsys.readouterr().out
