"""A rank's part of the model: one device's initial values, and memory for this part alone."""

from __future__ import annotations

import math

from minitrain.composition.settings import Model, Settings, Steps
from minitrain.lessons.composition import common as lesson

MODEL = Model(layers=5, hidden=8, heads=4, positions=8, vocabulary=259)


def test_names_of_a_single_device_are_kept():
    model = lesson.plain_model(Settings(Model(**vars(MODEL) | {"experts": 3}), steps=Steps()))
    names = dict(model.named_parameters())
    assert "blocks.1.mlp.experts.2.up.weight" in names and "blocks.1.mlp.router.gate.weight" in names
    assert math.prod(names["embedding.tokens.weight"].shape) == 259 * 8
