"""State dicts of a sharded optimizer: from another number of ranks, and from another model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minitrain.zero import HybridZero3, ShardedOptimizer, Zero1, Zero2, Zero3, ZeroOffload
from tests.zero.models import gpt, part, same_weights, train, wrap

stages = pytest.mark.parametrize("stage", (Zero1, Zero2))


def make(stage, seed=0, optimizer=torch.optim.AdamW, **options):
    return stage(gpt(seed=seed), optimizer, **{"lr": 0.01, **options})


def trained(world, stage):
    """The states after two steps, and the weights after three."""
    model = make(stage)
    train(model, world.rank, steps=2)
    states = copy.deepcopy(model.optimizer_state_dict())
    weights = copy.deepcopy(model.module.state_dict())
    train(model, 0, steps=1)  # every rank learns from the same, so that any number of ranks does
    return states, weights, model.module.state_dict()


def resumed(world, stage, weights, state):
    """Load, and make the third step."""
    model = make(stage, seed=5)
    model.module.load_state_dict(weights)
    model.load_optimizer_state_dict(state)
    train(model, 0, steps=1)
    return model.module.state_dict()


def close(found, expected):
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-11, atol=1e-11, msg=name)


@stages
def test_training_goes_on_in_another_stage_on_any_number_of_ranks(ranks, stage):
    states, weights, expected = ranks(3).run(trained, stage)[0]
    for again in (
        *ranks(2).run(resumed, Zero2 if stage is Zero1 else Zero1, weights, states),
        *ranks(4).run(resumed, stage, weights, states),
    ):
        close(again, expected)
    # They are the plain optimizer's.
    module = gpt(seed=5)
    module.load_state_dict(weights)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.5)
    optimizer.load_state_dict(copy.deepcopy(states))  # torch goes on in the tensors that it is given
    module(*part(0))[1].backward()
    optimizer.step()
    close(module.state_dict(), expected)
    assert states["param_groups"] == optimizer.state_dict()["param_groups"]


def handed_on(world, form, other, dtype):
    """States go to another form and to one of the same; all three train on alike."""

    def made(kind, seed):
        return wrap(world, kind, gpt(seed=seed), compute_dtype=dtype)

    model = made(form, 0)
    train(model, world.rank)
    others = [made(other, 5), made(form, 6)]
    full, states = model.full_state_dict(), model.optimizer_state_dict()
    for each in others:
        each.load_full_state_dict(full)
        each.load_optimizer_state_dict(copy.deepcopy(states))
    for each in (model, *others):
        train(each, world.rank, steps=2)
    for each in others:
        found = each.full_state_dict()
        for name, expected in model.full_state_dict().items():
            # Nodes add in another order.
            rounding = 1e-11 if form is HybridZero3 else 0
            torch.testing.assert_close(found[name], expected, rtol=rounding, atol=rounding, msg=name)


@pytest.mark.parametrize(
    "number, form, other, dtype",
    [
        (2, Zero3, Zero2, None),
        (2, Zero3, Zero2, torch.bfloat16),
        (2, ZeroOffload, Zero2, torch.bfloat16),
        (4, HybridZero3, Zero3, None),
    ],
)
def test_states_go_to_another_form_and_back(ranks, number, form, other, dtype):
    ranks(number).run(handed_on, form, other, dtype)


def mismatches(world, states):
    def refused(match, state, model):
        with pytest.raises(ValueError, match=match):
            model.load_optimizer_state_dict(state)

    def other(**choices):
        return Zero1(gpt(seed=0, **choices), torch.optim.AdamW, lr=0.01)

    refused(r"exp_avg of embedding.tokens.weight has shape \(17, 6\) .* \(13, 6\)", states, other(vocabulary=13))
    refused(r"parameter groups of \[36\] parameters, here they have \[52\]", states, other(layers=3))
    uneven = copy.deepcopy(states)
    uneven["state"][3]["step"] += 1
    refused(r"step of .* is 2.0 and that of .* is 3.0, but the parameters of one line", uneven, make(Zero1))


def test_states_of_another_model_name_the_first_mismatch(ranks):
    ranks(2).run(mismatches, ranks(3).run(trained, Zero1)[0][0])


def masters(world, stage):
    """A module's state dict reaches the masters, rounded or not."""

    def half(seed):
        return stage(gpt(seed=seed).float(), torch.optim.AdamW, compute_dtype=torch.bfloat16, lr=0.01)

    model, loaded = half(0), half(2)
    train(model, world.rank, steps=2)
    full = model.full_state_dict()
    assert full["head.weight"].dtype == torch.float32
    loaded.load_full_state_dict(full)
    same_weights(loaded.module, model.module, 0)
    rounded = half(3)
    rounded.module.load_state_dict(full)
    for name, value in rounded.full_state_dict().items():
        assert torch.equal(value, full[name].bfloat16().float()), name
    with pytest.raises(ValueError, match="norm.bias is missing in the state dict"):
        loaded.load_full_state_dict({name: value for name, value in full.items() if name != "norm.bias"})
    with pytest.raises(ValueError, match=r"norm.bias: shape \(7,\) in the state dict, not \(6,\)"):
        loaded.load_full_state_dict({**full, "norm.bias": torch.zeros(7)})


@stages
def test_a_module_s_state_dict_reaches_the_masters(ranks, stage):
    ranks(2).run(masters, stage)


def optimizer_states(world, saved=None):
    """The same for `ShardedOptimizer`."""
    torch.manual_seed(0)
    module = nn.Linear(3, 3).double()
    optimizer = ShardedOptimizer(module.parameters(), torch.optim.AdamW, lr=0.01)
    if saved is not None:
        optimizer.load_state_dict(saved)
        assert optimizer.param_groups[0]["lr"] == 0.25
    module(torch.ones(3, dtype=torch.float64)).square().sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.step()
    states = optimizer.state_dict()
    plain = torch.optim.AdamW(module.parameters())
    plain.load_state_dict(copy.deepcopy(states))
    assert plain.state[module.bias]["step"] == (2 if saved is None else 4)
    return states


def test_states_of_the_sharded_optimizer(ranks):
    ranks(4).run(optimizer_states, ranks(3).run(optimizer_states)[0])
