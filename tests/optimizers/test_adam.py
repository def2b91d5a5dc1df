"""Adam: against torch's for any means and shapes, on leaves of a model, and on flat shards."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.lessons.optimizers import common as lesson
from minitrain.optimizers.adam import Adam
from minitrain.zero.stage1 import Zero1
from tests.optimizers.common import flat, pair, step


@settings(max_examples=30)
@given(
    st.floats(0, 0.99),
    st.floats(0, 0.9999),
    st.sampled_from([1e-8, 1e-2]),
    st.lists(st.lists(st.integers(1, 5), max_size=3).map(tuple), min_size=1, max_size=3),
)
def test_like_torch(beta_1, beta_2, eps, shapes):
    make = partial(Adam, lr=0.1, betas=(beta_1, beta_2), eps=eps)
    theirs = partial(torch.optim.Adam, lr=0.1, betas=(beta_1, beta_2), eps=eps)
    for ours, right in pair(make, theirs, shapes):
        torch.testing.assert_close(ours, right, rtol=1e-9, atol=1e-9)


def test_on_the_parameters_of_a_model():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = Adam(model.parameters(), lr=0.05)
    x, losses = torch.randn(32, 4), []
    for _ in range(200):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 100
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


def test_a_parameter_without_gradients_stays():
    theta = torch.ones(3)
    optimizer = Adam([theta])
    for _ in range(3):
        step(optimizer, torch.tensor([0.0, 1.0, 0.0]))
    assert theta[[0, 2]].eq(1).all() and theta[1] < 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_zero_may_cut_anywhere(ranks, size):
    assert all(ranks(size).run(flat, Adam, lesson.SHAPES))


def bytes_on_a_rank(world):
    model = Zero1(torch.nn.Linear(6, 5), Adam)
    return sum(each.nbytes for each in lesson.tensors(model.optimizer))


def test_each_rank_has_the_states_of_its_shard(ranks):
    # 35 parameters are padded to 36, 12 on each rank, 8 bytes for each.
    assert ranks(3).run(bytes_on_a_rank) == [96, 96, 96]
