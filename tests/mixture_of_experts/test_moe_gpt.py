"""A GPT with mixtures: what is replaced, and initial weights."""

from __future__ import annotations

import pytest
import torch

from minitrain.mixture_of_experts import Switch
from minitrain.mixture_of_experts.moe_gpt import replace_mlps
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT, MLP

CONFIG = GPTConfig(vocabulary=17, positions=6, layers=4, hidden=8, heads=2)


def gpt(experts=3, **choices):
    model = GPT(CONFIG, seed=0).double()
    mixtures = replace_mlps(model, lambda layer: Switch(8, experts, layer=layer), **choices)
    return model, mixtures


def test_initial_weights_depend_on_name_and_seed_alone():
    first, second, other = gpt(compute="loop")[0], gpt(compute="grouped")[0], gpt(seed=1)[0]
    third = gpt(experts=5)[0]
    for (name, parameter), same, unlike in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(parameter, same), name
        assert "mlp.experts" not in name or parameter.dim() == 1 or not torch.equal(parameter, unlike), name
    for expert in ("0", "2"):
        weight = first.blocks[3].mlp.experts[expert].down.weight
        assert torch.equal(weight, third.blocks[3].mlp.experts[expert].down.weight)
        assert 0.5 < weight.std() / (0.02 / 8**0.5) < 2  # as the residual's other projections
    assert not torch.equal(first.blocks[3].mlp.experts["0"].up.weight, first.blocks[3].mlp.experts["1"].up.weight)


def test_bad_input():
    model = GPT(CONFIG, seed=0)
    for every in (0, 5):
        with pytest.raises(ValueError, match=f"every={every} replaces none of 4 blocks; use 1 to 4"):
            replace_mlps(model, lambda layer: Switch(8, 2), every=every)
    with pytest.raises(ValueError, match="router for hidden=4 does not fit the model's hidden=8"):
        replace_mlps(model, lambda layer: Switch(4, 2))
    assert all(isinstance(block.mlp, MLP) for block in model.blocks)
