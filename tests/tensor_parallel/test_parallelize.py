"""A whole GPT cut over ranks: one device's tokens and gradients, and what it says about itself.

The lesson and tests/composition train it.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.models import GPT, GPTConfig
from minitrain.models.gpt import initial_weight
from minitrain.tensor_parallel.full.parallelize import parallelize, piece_of
from minitrain.tensor_parallel.full.parameter_layout import sum_partial_gradients
from tests.models import kinds

QWEN = kinds.QWEN | {"mlp_hidden": 12}


def gpt(ranks, **choices) -> GPT:
    sizes = {"vocabulary": 13, "positions": 12, "layers": 2, "hidden": 4 * ranks, "heads": 2 * ranks}
    return GPT(GPTConfig(**{**sizes, **choices}), seed=0).double()


def tokens(step=0):
    inputs, targets = torch.randint(13, (2, 3, 12), generator=torch.Generator().manual_seed(step))
    targets[0, :2] = -100
    return inputs, targets


def close(model, reference, group=None):
    for (name, mine), its in zip(model.named_parameters(), reference.parameters(), strict=True):
        for found, expected in ((mine.detach(), its), (mine.grad, its.grad)):
            assert (found is None) == (expected is None), name
            if found is not None:
                expected = piece_of(expected, mine, group)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, msg=lambda m: f"{name}: {m}")  # noqa: B023


def report(world, choices):
    model = gpt(world.size, **choices)
    before = {name: tuple(p.shape) for name, p in model.named_parameters()}
    replaced = parallelize(model)
    assert [row.name for row in replaced.parameters] == list(before) == [name for name, _ in model.named_parameters()]
    for row, parameter in zip(replaced.parameters, model.parameters(), strict=True):
        assert (row.before, row.now) == (before[row.name], tuple(parameter.shape))
    assert not [name for name, part in model.named_modules() if type(part) is nn.Linear], "nothing stays dense"
    return replaced, str(replaced)


def test_it_says_what_it_replaced(ranks):
    replaced, text = ranks(2).run(report, {"tied": False})[0]
    ends = ("norm.weight", "norm.bias", "output.bias", "down.bias", "positions.weight")
    assert replaced.replicated == [row.name for row in replaced.parameters if row.name.endswith(ends)]
    assert replaced.modules["blocks.1.mlp.up"] == "ColumnParallelLinear"
    lines = [line.split() for line in text.splitlines()]
    assert ["embedding.tokens.weight", "13", "×", "8", "7", "×", "8", "dim", "0", "in", "2"] in lines
    assert ["blocks.0-1.mlp.down.bias", "8", "8", "replicated"] in lines
    how = {row.name: row.how for row in ranks(4).run(report, {"kv_heads": 2})[0][0].parameters}
    assert how["blocks.0.attention.key.bias"] == "dim 0 in 2, each on 2 ranks, gradients to be summed"
    assert "summed" not in how["blocks.0.attention.query.bias"]


def generated(world, choices):
    reference = gpt(world.size, **choices)
    for number, parameter in enumerate(reference.parameters()):  # else norms would be 1, and biases 0
        nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(number))
    model = copy.deepcopy(reference)
    parallelize(model)
    inputs, targets = tokens()
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    drawn = model.generate(inputs, 7, generator=generators[0])
    assert torch.equal(drawn, reference.generate(inputs, 7, generator=generators[1]))
    whole, none = model(inputs)
    assert none is None and whole.shape[-1] == 13  # without padding
    torch.testing.assert_close(whole, reference(inputs)[0], rtol=0, atol=1e-12)
    assert model(inputs, targets)[0].shape[-1] == -(-13 // world.size)  # with targets nobody needs them whole
    # A loss of one's own on whole logits has the right gradients too.
    nn.functional.cross_entropy(whole.flatten(0, 1), targets.flatten()).backward()
    reference(inputs, targets)[1].backward()
    sum_partial_gradients(model)
    close(model, reference)
    return drawn.tolist()


@pytest.mark.parametrize("choices", ({}, {"attention": "plain", "tied": False}, QWEN | {"kv_heads": 1}), ids=str)
def test_tokens_and_gradients_are_one_devices_on_all_ranks(ranks, choices):
    drawn = ranks(3).run(generated, choices)
    assert all(each == drawn[0] for each in drawn)


def without_memory(world):
    """A model of which no rank ever holds the whole."""
    reference = gpt(world.size)
    with torch.device("meta"):
        model = gpt(world.size)
    replaced = parallelize(model)
    model.to_empty(device="cpu")
    model.head.weight = model.embedding.tokens.weight  # to_empty makes each its own
    with torch.no_grad():
        for row, parameter in zip(replaced.parameters, model.parameters(), strict=True):
            parameter.copy_(piece_of(initial_weight(row.name, row.before, 2, seed=0), parameter))
    model(*tokens())[1].backward(), reference(*tokens())[1].backward()
    close(model, reference)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(copied(tokens()[0])[0], model(tokens()[0])[0])


def test_a_model_made_without_memory_takes_its_pieces_by_name(ranks):
    ranks(3).run(without_memory)


# Bad input: a model, what else, and what every rank is told.
def heads_do_not_divide():
    return gpt(1, heads=3, hidden=6), "heads=3 cannot be split over 2 tensor-parallel ranks; use a multiple of 2"


def dropout_in_a_fused_kernel():
    return gpt(2, dropout=0.1, attention="sdpa"), "dropout=0.1 with attention='sdpa': .* use attention='plain'"


def parallel_already():
    model = gpt(2)
    parallelize(model)
    return model, "gpt is tensor-parallel already"


def bad(world, make):
    model, message = make()
    before = {name: type(part) for name, part in model.named_modules()}
    with Ledger() as ledger, pytest.raises(ValueError, match=message):
        parallelize(model)
    assert {name: type(part) for name, part in model.named_modules()} == before
    return ledger.entries


@pytest.mark.parametrize("make", (heads_do_not_divide, dropout_in_a_fused_kernel, parallel_already))
def test_bad_input_is_refused_on_every_rank_and_changes_nothing(ranks, make):
    assert ranks(2).run(bad, make) == [[], []]
