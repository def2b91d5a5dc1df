"""A rank's part of the model: one device's initial values, and memory for this part alone."""

from __future__ import annotations

import math

import torch

from minitrain.composition.layout import make_axes
from minitrain.composition.settings import Layout, Model, Settings, Steps
from minitrain.composition.step import Instruments
from minitrain.lessons.composition import common as lesson
from minitrain.train import make_part

MODEL = Model(layers=5, hidden=8, heads=4, positions=8, vocabulary=259)


def frozen_choices(world):
    """Whether the head is the embedding's very tensor, tied or not, on one rank and on ranks that have both ends."""
    found = []
    for tied in (True, False):
        for layout in (Layout(tp=2), Layout(pp=2, schedule="zb-v", microbatches=2), Layout(pp=2)):
            model = Model(**vars(MODEL) | {"tied": tied})
            axes = make_axes(layout)
            part = make_part(Settings(model, layout), axes, torch.device("cpu"), Instruments())
            axes.close()
            ends = [layer for stage in part.stages for name, layer in zip(stage.names, stage, strict=True)
                    if name in ("embedding", "head")]  # fmt: skip
            same = len(ends) == 2 and ends[0].get_parameter("tokens.weight") is ends[1].get_parameter("weight")
            found.append((len(ends), same, part.holders("embedding.tokens.weight")))
    return found


def test_tied_weights(ranks):
    first, last = ranks(2).run(frozen_choices)
    assert first == [(2, True, []), (2, True, [0]), (1, False, [0, 1]), (2, False, []), (2, False, []), (1, False, [])]
    assert [found[2] for found in last] == [found[2] for found in first]


def test_names_of_a_single_device_are_kept():
    model = lesson.plain_model(Settings(Model(**vars(MODEL) | {"experts": 3}), steps=Steps()))
    names = dict(model.named_parameters())
    assert "blocks.1.mlp.experts.2.up.weight" in names and "blocks.1.mlp.router.gate.weight" in names
    assert math.prod(names["embedding.tokens.weight"].shape) == 259 * 8
