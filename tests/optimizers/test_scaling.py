"""The rules of scaling, worked out by hand; and the experiments of the notebook."""

from __future__ import annotations

import pytest
import torch

from minitrain.data.text import Samples, Text
from minitrain.lessons.optimizers.experiments import CONFIG, held_out, trust_ratios
from minitrain.models.gpt import GPT
from minitrain.optimizers.lamb import LAMB
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
    assert held_out("Adam", rule, 256, 256, 5) == pytest.approx(right, rel=1e-3)


def test_trust_ratios():
    model, samples, gradients, x = GPT(CONFIG, seed=0), Samples(Text.load("reference").training, 32), [], None
    optimizer, weight = LAMB(model.parameters(), lr=0.01), model.blocks[0].mlp.up.weight
    for step in range(2):
        model.zero_grad()
        model(*samples.batch(step, 16))[1].backward()
        gradients.append(weight.grad.clone())
        x = weight.detach().clone()
        optimizer.step()
    first, second = gradients
    # The means of two gradients, the first weighted by β: for β = 0.9, 0.9/1.9 and 1/1.9.
    r = (0.9 * first + second) / 1.9 / ((0.999 * first**2 + second**2) / 1.999).sqrt().add(1e-6)
    ratios = trust_ratios(steps=2)["blocks.0.mlp.up"]
    assert ratios[1] == pytest.approx(float(x.norm() / (r + 0.01 * x).norm()), rel=1e-4)
    assert ratios[0] == pytest.approx(0.02, rel=0.02)  # elements of ±1, and weights with a deviation of 0.02
