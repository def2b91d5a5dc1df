"""Both checkpoints against no checkpoint: every kind of argument and result, random state, and misuse."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from minitrain.recomputation import checkpoint as small
from minitrain.recomputation.full import early_stop
from minitrain.recomputation.full.checkpoint import checkpoint
from tests.recomputation.models import same_bits

all_forms = pytest.mark.parametrize(
    "checkpoint",
    (small.checkpoint, checkpoint, early_stop.checkpoint),
    ids=("small", "in a second graph", "stopping early"),
)
both = pytest.mark.parametrize(
    "checkpoint", (checkpoint, early_stop.checkpoint), ids=("in a second graph", "stopping early")
)


class Nested(nn.Module):
    """Takes and returns tensors, numbers and nothing, nested, by position and by name."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, others, *, scale, table=None):
        hidden = self.dropout(torch.tanh(self.first(x) + others["a"] * scale))
        picked = others["b"][1][table["rows"]]
        result = self.dropout(torch.sin(self.second(hidden)) * picked)
        return {"result": result, "more": (hidden, x, None, 7), "rows": table["rows"], "detached": hidden.detach()}


def nested_step(call, module):
    torch.manual_seed(0)
    x, a, b = (torch.randn(4, 3, dtype=torch.float64, requires_grad=k < 2) for k in range(3))
    rows = torch.tensor([3, 1, 1, 0])
    outputs = call(module, x * 1, {"a": a, "b": [None, b]}, scale=0.5, table={"rows": rows})
    hidden, same, nothing, seven = outputs["more"]
    assert (nothing, seven) == (None, 7) and torch.equal(outputs["rows"], rows)
    assert torch.equal(outputs["detached"], hidden)
    (outputs["result"].sum() + (hidden * same).sum()).backward()
    return [outputs["result"].detach(), x.grad, a.grad, torch.rand(3), *(p.grad for p in module.parameters())]


@both
def test_nested_arguments_and_results_to_the_last_bit(checkpoint):
    torch.manual_seed(1)
    module = Nested()
    other = copy.deepcopy(module)
    plain = nested_step(lambda module, *args, **kwargs: module(*args, **kwargs), module)
    for expected, mine in zip(plain, nested_step(checkpoint, other), strict=True):
        assert torch.equal(expected, mine)


@both
def test_parameters_learn_where_no_input_requires_a_gradient(checkpoint):
    """Torch's reentrant checkpoint gives them none, with a warning."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    plain = copy.deepcopy(module)
    plain(x).sum().backward()
    checkpoint(module, x).sum().backward()
    same_bits(module, plain)
    checkpoint(lambda: module(x)).sum().backward()  # without any argument
    assert torch.equal(module[0].weight.grad, 2 * plain[0].weight.grad)


@both
@pytest.mark.parametrize("preserve", (True, False))
def test_random_state(checkpoint, preserve):
    """Dropout's gradient says which elements were dropped in backward, its result which in forward."""
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    dropped = checkpoint(lambda x: nn.functional.dropout(torch.sin(x), 0.5), x, preserve_random_state=preserve)
    torch.rand(3)  # the caller goes on drawing
    expected = torch.get_rng_state()
    dropped.sum().backward()
    assert torch.equal(dropped != 0, x.grad != 0) is preserve
    assert torch.equal(torch.get_rng_state(), expected) is preserve


@both
def test_an_input_changed_afterwards_is_noticed(checkpoint):
    x = torch.ones(3, requires_grad=True) * 1
    result = checkpoint(torch.sin, x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place after the call"):
        result.sum().backward()


@both
def test_a_function_that_changes_its_input_is_refused(checkpoint):
    """Torch's computes again from the changed input, and gives a wrong gradient without a word."""
    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(RuntimeError, match=r"changes its input 0, a tensor of shape \(3,\), in place"):
        checkpoint(lambda x: torch.sin(x.mul_(2)), x)


@all_forms
def test_nested_checkpoints(checkpoint):
    calls = []

    def inner(x):
        calls.append("inner")
        return nn.functional.dropout(torch.sin(x), 0.5)

    def outer(x):
        calls.append("outer")
        return checkpoint(inner, checkpoint(inner, x * 2)).exp()

    gradients = []
    for call in (lambda function, x: function(x), checkpoint):
        torch.manual_seed(0)
        x = torch.ones(50, dtype=torch.float64, requires_grad=True)
        call(outer, x).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
    assert calls.count("outer") == 3  # plain, forward, backward


@both
def test_buffers_count_a_batch_once(checkpoint):
    """Torch's count it twice."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, requires_grad=True)
    plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh())
    ours = copy.deepcopy(plain)
    plain(x).sum().backward()
    checkpoint(ours, x).sum().backward()
    assert all(torch.equal(mine, its) for mine, its in zip(ours.buffers(), plain.buffers(), strict=True))
    same_bits(ours, plain)


@both
def test_a_function_that_does_something_else_is_noticed(checkpoint):
    sizes = iter((2, 3, 2, 3))
    x = torch.ones(5, requires_grad=True)
    for function in (lambda x: x[: next(sizes)].sin().exp(), lambda x: x[: next(sizes)].sin()):
        result = checkpoint(function, x)
        with pytest.raises(RuntimeError, match="it must do the same each time"):
            result.sum().backward()


@both
def test_nothing_stays_behind(checkpoint):
    """What was computed again is gone after backward, at once, though the result and its graph are still held."""
    x = torch.ones(31, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        result = checkpoint(lambda x: x.sin().exp().exp(), x)
        result.sum().backward()
        alive = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (31,)]
    finally:
        gc.enable()
    assert {id(tensor) for tensor in alive} <= {id(tensor) for tensor in (x, x.grad, result)}
