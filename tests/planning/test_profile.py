"""Profiles: times of layers that take long, bytes, files, PipeDream's own, and files that lack something."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from minitrain.lessons.planning.pipedream_planner import PROFILES
from minitrain.planning.profile import Layer, measure, read, write


class Slow(torch.autograd.Function):
    """Takes a while, and three times as long in backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.01)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.03)
        return gradient


class SlowLayer(nn.Module):
    forwards = 0

    def forward(self, x):
        self.forwards += 1
        return Slow.apply(x)


def test_times_are_those_of_each_layer():
    model = nn.Sequential(nn.Linear(3, 5), SlowLayer(), nn.Linear(5, 2, bias=False))
    first, slow, last = measure(model, torch.ones(4, 3), repeats=3)
    assert model[1].forwards == 3 + 1, "and a warm-up"
    # `sleep` takes at least as long as it is asked to, in milliseconds.
    assert slow.forward >= 10 and slow.backward >= 30
    assert first.forward + last.forward < slow.forward
    assert [layer.name for layer in (first, slow, last)] == ["0", "1", "2"]
    assert [layer.weight for layer in (first, slow, last)] == [4 * (3 * 5 + 5), 0, 4 * 5 * 2]
    assert [layer.activation for layer in (first, slow, last)] == [4 * 4 * 5, 4 * 4 * 5, 4 * 4 * 2]


def test_a_file_keeps_every_digit(tmp_path):
    profile = [Layer("a", 1 / 3, 2.5e-7, 10**12, 0), Layer("b.c", 0.0, 123456.789, 1, 2)]
    write(tmp_path / "p.txt", profile)
    assert read(tmp_path / "p.txt") == profile
    assert read(tmp_path / "p.txt", ["b.c", "a"]) == profile[::-1]


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        ("a 1 2 3 4\n", ["a", "b", "c"], r"p.txt has no layers \['b', 'c'\]; measure the model"),
        ("", ["a"], r"has no layers \['a'\]"),
        ("a 1 2 3\n", (), "p.txt: 'a 1 2 3' needs a name and four numbers"),
        ("a 1 -2 3 4\n", (), "'a 1 -2 3 4' has a number below 0"),
        ("# x\na 1 2 3 4\na 1 2 3 4\n", (), "layer a is there twice"),
    ],
)
def test_files_that_lack_something(tmp_path, text, names, message):
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(AssertionError, match=message):
        read(tmp_path / "p.txt", names)


def test_published_profiles():
    """Parameters as torchvision counts them, so that no layer has been lost on the way; outputs have 1,000 classes."""
    for name, parameters, batch in (("vgg16", 138357544, 128), ("alexnet", 61100840, 256), ("resnet50", 25557032, 128)):
        layers = read(PROFILES / f"{name}.txt")
        assert sum(layer.weight for layer in layers) == 4 * parameters
        assert layers[-1].activation == 4 * 1000 * batch
    gnmt = read(PROFILES / "gnmt8.txt")
    # Two tables and a classifier of 32,320 × 1,024; an LSTM of 1,024 has 4 matrices for each of its two inputs.
    lstm = 4 * (2 * 1024 * 1024 + 2 * 1024)
    assert {layer.name: layer.weight for layer in gnmt}["encoder3"] == 4 * lstm
    assert gnmt[0].weight == 4 * 32320 * 1024
    assert gnmt[-1].weight == 4 * (32320 * 1024 + 32320)
