"""What one training step holds equals the formulas, for models of several shapes; they know nothing of each other."""

from __future__ import annotations

import pytest
import torch

from minitrain.costs import memory as costs
from minitrain.matrix_product import memory
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT

# vocabulary, positions, layers, hidden, heads, batch, sequence
SIZES = ((256, 128, 4, 128, 4, 8, 128), (17, 9, 1, 6, 3, 1, 1), (50, 11, 3, 20, 5, 3, 7))


def step(config: GPTConfig, batch: int, sequence: int) -> tuple[dict[str, int], GPT]:
    model = GPT(config, seed=0)
    tokens = torch.randint(config.vocabulary, (batch, sequence))
    optimizer = torch.optim.AdamW(model.parameters())
    return memory.one_step(model, optimizer, tokens, tokens.roll(-1, dims=1)), model


@pytest.mark.parametrize(
    ("sizes", "kind", "tied"), [(SIZES[0], "sdpa", True), (SIZES[1], "plain", False), (SIZES[2], "plain", True)]
)
def test_bytes_are_those_of_the_formulas(sizes, kind, tied):
    vocabulary, positions, layers, hidden, heads, batch, sequence = sizes
    held, model = step(
        GPTConfig(vocabulary, positions, layers, hidden, heads, tied=tied, attention=kind), batch, sequence
    )
    parameters = costs.gpt_parameters(vocabulary, positions, layers, hidden, tied)
    tensors = costs.gpt_tensors(layers, tied)
    assert tensors == len(list(model.parameters()))
    assert parameters == model.parameter_count()
    assert held["parameters"] == held["gradients"] == 4 * parameters
    assert held["optimizer states"] == costs.adamw_bytes(parameters, tensors)
    assert held["buffers"] == 0
    assert held["activations"] == costs.gpt_activations(
        batch, sequence, hidden, heads, layers, vocabulary, fused=kind == "sdpa"
    )
