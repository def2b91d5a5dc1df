"""Probes of a model whose probabilities are known."""

from __future__ import annotations

import math

import pytest
import torch

from minitrain.craft.probes import log_probability, prefers


def model(tokens):
    """After token t, token t + 1 of 8 has probability 1/2, the others share the rest."""
    logits = torch.full((*tokens.shape, 8), math.log(0.5 / 7))
    return logits.scatter(2, ((tokens + 1) % 8).unsqueeze(2), math.log(0.5))


def test_a_product_of_probabilities():
    assert log_probability(model, [1], [2, 3], 8) == pytest.approx(2 * math.log(0.5))
    assert log_probability(model, [5, 1], [2, 2, 3], 8) == pytest.approx(2 * math.log(0.5) + math.log(0.5 / 7))
    assert prefers(model, [1], [2], [5], 8) == pytest.approx(math.log(7))
