"""Ordered sums: a run that changes its number of data-parallel ranks has the bits of one that does not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from minitrain.composition.settings import Layout, Model, Run, Settings, Steps
from minitrain.lessons.trainer.trainer import gathered
from minitrain.train import train
from minitrain.trainer import metrics
from minitrain.trainer.identity import described, different
from minitrain.trainer.trainer import Trainer
from tests.drawn import first

MODEL = Model(layers=2, hidden=8, heads=2, positions=9, dropout=0.1)
STEPS = Steps(steps=5, batch=24, warmup=1, lr=1e-2, ordered_sums=True)
LINE = ("step", "loss", "norm", "lr", "validation", "skipped")
UNITS = 12  # micro-batches of a step, of 2 samples each


def asked(folder, name, dp, zero=0, run=None, **steps):
    layout = Layout(dp=dp, zero=zero, microbatches=UNITS // dp)
    run = {"sample": 0, "evaluate_every": 0} | (run or {})
    return Settings(MODEL, layout, replace(STEPS, **steps), Run(name=name, runs=str(folder), **run))


def do(world, settings, stop_at=None):
    """A run, or a part of it: its state as of one device, and the numbers of the samples that this rank has taken."""
    taken = Counter()
    trainer = Trainer(world, settings, lambda: stop_at is not None and trainer.done >= stop_at, tell=lambda text: None)
    take = trainer.samples.take

    def counted(samples):
        taken.update(samples)
        return take(samples)

    trainer.samples.take = counted
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the program does: a kernel adds in another order on several
    assert train(trainer) == 0
    torch.set_num_threads(threads)
    return gathered(trainer), taken


def lines(folder, name):
    found = metrics.read(folder / name / "metrics.jsonl")
    return [[line.get(key) for key in LINE] for line in found if "loss" in line]


def same_bits(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.fixture(scope="module")
def plain(ranks, tmp_path_factory):
    """A run on one device that knows nothing of ordered sums."""
    folder = tmp_path_factory.mktemp("plain")
    ((state, _),) = ranks(1).run(do, asked(folder, "plain", 1, ordered_sums=False))
    return state, lines(folder, "plain")


def test_four_two_three_four_ranks(ranks, plain, tmp_path):
    state, written = plain
    taken, ends = Counter(), []
    # The third start divides the optimizer's states, the fourth does not.
    for dp, zero, stop in ((4, 0, 1), (2, 0, 2), (3, 1, 4), (4, 0, None)):
        settings = asked(tmp_path, "run", dp, zero, {"resume": True})
        ends, samples = zip(*ranks(dp).run(do, settings, stop), strict=True)
        taken = sum(samples, taken)
    assert all(same_bits(state, found) for found in ends)
    assert lines(tmp_path, "run") == written
    assert taken == Counter(range(STEPS.steps * STEPS.batch)), "every sample once"


def test_without_ordered_sums_bits_differ(ranks, plain, tmp_path):
    """Otherwise the test above would show nothing."""
    state, _ = plain
    (found, _), *_ = ranks(3).run(do, asked(tmp_path, "run", 3, ordered_sums=False))
    assert not same_bits(state, found)


@pytest.mark.parametrize(
    "zero, optimizer, dtype", first([(1, "sgd", "float64"), (0, "muon", "bfloat16"), (1, "adamw", "float16")])
)
def test_other_optimizers_and_dtypes(ranks, tmp_path, zero, optimizer, dtype):
    found = []
    for dp in (1, 3):
        # In float16 the first steps overflow and are skipped.
        settings = asked(tmp_path, f"dp{dp}", dp, zero, optimizer=optimizer, dtype=dtype, loss_scale=2.0**20)
        found.append((ranks(dp).run(do, settings)[0][0], lines(tmp_path, f"dp{dp}")))
    (state, losses), (other, its) = found
    assert same_bits(state, other) and losses == its
    assert [line[-1] for line in losses][:1] == ([True] if dtype == "float16" else [None])


def test_resumed_with_other_micro_batches(tmp_path):
    """Refused, since the bits would be others; the layout may change otherwise."""

    def apart(now):
        return different(described(asked(tmp_path, "run", 4), "text"), described(now, "text"))

    now = asked(tmp_path, "run", 2, zero=1)
    assert apart(now) == []
    (message,) = apart(replace(now, layout=replace(now.layout, microbatches=3)))
    assert "dp · microbatches=12 there and 6 here" in message and message.endswith("use microbatches=6")
    (message,) = apart(replace(now, layout=Layout(dp=8)))
    assert message.endswith("use dp that divides 12")
    (message,) = apart(asked(tmp_path, "run", 4, ordered_sums=False))
    assert message == "ordered_sums=True there and False here"
    old = described(asked(tmp_path, "run", 4, ordered_sums=False), "text")
    del old["steps"]["ordered_sums"]  # of an earlier version
    assert different(old, described(asked(tmp_path, "run", 2, ordered_sums=False), "text")) == []
