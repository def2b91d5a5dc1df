"""Several tensors between layers, ties, and what cannot be split; the lesson has the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from minitrain.models import GPT, GPTConfig
from minitrain.pipeline_parallel.full import tied
from minitrain.pipeline_parallel.splitting import evenly, layer_times, layers_of, split


def gpt(**choices):
    return GPT(GPTConfig(**{"vocabulary": 11, "positions": 4, "layers": 5, "hidden": 4, "heads": 2, **choices}), seed=0)


def test_several_tensors_between_layers():
    class Two(nn.Module):
        def forward(self, x, y):
            return x + y, x * y

    model = nn.Sequential(Two(), Two(), Two())
    x, y = torch.rand(2, 3)
    first, second = split(model, [2, 1])
    expected = Two()(*Two()(*Two()(x, y)))
    assert all(map(torch.equal, second(*first(x, y)), expected))


def test_ties_are_found_whatever_the_split():
    model = gpt()
    parts = split(model, [1, 3, 2, 1, 1])
    assert tied.ties(parts) == [tied.Tie((0, 4), ("0.tokens.weight", "0.weight"))]
    assert tied.ties(split(model, [8])) == []
    assert tied.ties(split(gpt(tied=False), [4, 4])) == []


def test_what_cannot_be_split():
    model = gpt()
    with pytest.raises(ValueError, match="stages=6 are more than the 5 blocks; use at most 5, or fewer chunks"):
        evenly(model, 6)
    for counts in ([8, 0], [4, 5]):
        with pytest.raises(ValueError, match="does not split 8 layers .embedding, blocks.0, .* add up to 8"):
            split(model, counts)
    with pytest.raises(ValueError, match="model is a Linear, whose order of layers is not known"):
        layers_of(nn.Linear(1, 1))


def test_measured_times():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 2).requires_grad_(False))
    model[1].weight.grad = torch.ones(4, 4)
    times = layer_times(model, torch.arange(9), repeats=2)
    assert len(times) == 4 and min(times) > 0
    assert model[1].weight.grad.eq(1).all() and model[1].bias.grad is None
