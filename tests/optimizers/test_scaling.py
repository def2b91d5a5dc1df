"""The rules of scaling, worked out by hand; and the experiments of the notebook."""

from __future__ import annotations

import pytest
import torch

from minitrain.data.text import Samples, Text
from minitrain.lessons.optimizers.experiments import CONFIG, held_out
from minitrain.models.gpt import GPT
from minitrain.optimizers.scaling import linear, square_root


def test_rules():
    # ResNet-50 of Goyal et al. 2017: 0.1 for 256 images, 3.2 for 8,192.
    assert linear(0.1, 8192, 256) == pytest.approx(3.2)
    assert square_root(0.1, 1024, 256) == pytest.approx(0.2)
    assert linear(0.1, 64, 64) == square_root(0.1, 64, 64) == 0.1


@pytest.mark.parametrize(("rule", "rate"), [("linear", 0.003 * 64), ("square root", 0.003 * 8)])
def test_a_training_of_one_step(rule, rate):
    text, model = Text.load("reference"), GPT(CONFIG, seed=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model(*Samples(text.training, 32, seed=5).batch(0, 256))[1].backward()
    optimizer.step()
    right = model(*Samples(text.validation, 32).batch(0, 256))[1].item()
    assert held_out("Adam", rule, 256, 5, 256) == pytest.approx(right, rel=1e-3)
