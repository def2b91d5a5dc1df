"""The comparisons run, and both sides train the same model; which is faster is no matter here."""

from __future__ import annotations

from minitrain.benchmarks import composition as benchmark
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.data.text import Samples, Text
from minitrain.train import build, train_step

SMALL = Model(layers=2, hidden=16, heads=2, positions=8)


def measure(world):
    return benchmark.measure(world, SMALL, batch=4, repeats=1)


def test_every_layout_that_fits_has_two_rows(ranks):
    rows, *others = ranks(2).run(measure)
    assert others == [rows]
    assert {row.against for row in rows} == {"DDP (gloo)"}
    names = [row.what.split("2 ranks, ")[1].rsplit(", ", 1)[0] for row in rows]
    assert names[::2] == ["dp2", "dp2, ZeRO 1", "dp2, ZeRO 3", "tp2", "tp2, sequence parallel", "pp2"]


def distance(world):
    steps, samples = Steps(batch=4, warmup=0), Samples(Text.load().training, 8)
    gpt = benchmark._gpt(world, SMALL, steps)
    plain = benchmark._plain(world, gpt, steps, samples)
    training = build(Settings(SMALL, Layout(dp=world.size), steps), world.device)
    for _ in range(2):
        plain()
        train_step(training, 0, 0, samples)
    theirs = {name: parameter.detach() for name, parameter in gpt.named_parameters()}
    return max(float((theirs[name] - p.detach()).abs().max()) for name, p in training.part.parameters.items())


def test_both_sides_train_the_same_model(ranks):
    # Two steps of AdamW move a weight by 2 · lr = 6e-3 at most. Its first step moves by lr · g/(|g| + ε), and float32
    # gradients that are nearly 0 may differ by their rounding; a wrong sum or norm moves nearly all of them.
    assert max(ranks(2).run(distance)) < 1e-3
