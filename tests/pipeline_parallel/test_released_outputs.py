"""Outputs that were sent are released while their micro-batches are in flight, and gradients stay one device's."""

from __future__ import annotations

import copy
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from minitrain.pipeline_parallel.executor import Pipeline
from minitrain.pipeline_parallel.schedules import gpipe, one_f_one_b, zero_bubble_h1

ROWS, WIDTH, COUNT = 2, 4, 3  # of a micro-batch; and how many there are


class Linear(nn.Module):
    """A linear layer, and what comes after it."""

    def __init__(self, after=lambda y: y):
        super().__init__()
        self.linear, self.after = nn.Linear(WIDTH, WIDTH).double(), after

    def forward(self, x):
        return self.after(self.linear(x))


class Product(nn.Module):
    def forward(self, first, second):
        return first * second


STAGES = {
    "saved by nobody": lambda: (Linear(), Linear()),
    "a sigmoid, which autograd saves": lambda: (Linear(torch.sigmoid), Linear()),
    "a relu, which autograd saves": lambda: (Linear(torch.relu), Linear()),
    "a view of a part": lambda: (Linear(lambda y: y[:, 1:]), nn.Tanh()),
    "a view with gaps": lambda: (Linear(lambda y: y.t()), nn.Tanh()),
    "the same tensor twice": lambda: (Linear(lambda y: (y, y)), Product()),
    "the input itself": lambda: (nn.Identity(), Linear()),
}


def against_one_device(world, kind, make):
    torch.manual_seed(0)
    stages = STAGES[kind]()
    reference = copy.deepcopy(stages)
    inputs = [torch.rand(ROWS, WIDTH, dtype=torch.float64).requires_grad_() for _ in range(COUNT)]
    for x in inputs:
        made = reference[0](x.detach().requires_grad_())
        (reference[1](*made if isinstance(made, tuple) else (made,)).square().sum() / COUNT).backward()
    Pipeline([stages[world.rank]], make(2, COUNT), lambda y, _: y.square().sum()).step(inputs, inputs)
    for mine, theirs in zip(stages[world.rank].parameters(), reference[world.rank].parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)


@pytest.mark.parametrize("make", (gpipe, one_f_one_b, zero_bubble_h1))
@pytest.mark.parametrize("kind", STAGES)
def test_backward_does_not_need_what_was_sent(ranks, kind, make):
    ranks(2).run(against_one_device, kind, make)


class Noted(nn.Module):
    """A stage that notes the memory of each micro-batch's output, without holding it."""

    def __init__(self, stage):
        super().__init__()
        self.stage, self.outputs = stage, []

    def forward(self, *inputs):
        y = self.stage(*inputs)
        self.outputs.append((StorageWeakRef(y.untyped_storage()), y.untyped_storage().nbytes()))
        return y


def released(world, stage, schedule, inputs):
    """The most bytes of sent outputs of micro-batches in flight that were gone when a backward began."""
    most = 0

    @contextmanager
    def watch(action):
        nonlocal most
        if action.kind in "BI" and world.rank < world.size - 1:
            in_flight = [stage.outputs[microbatch] for _, microbatch in pipeline.held]
            most = max(most, sum(size for memory, size in in_flight if memory.expired()))
        yield

    pipeline = Pipeline([stage], schedule, lambda y, _: y.sum(), watch=watch)
    pipeline.step(inputs, inputs)
    return most


def released_of(world, kind):
    torch.manual_seed(0)
    inputs = [torch.rand(ROWS, WIDTH, dtype=torch.float64) for _ in range(COUNT)]
    return released(world, Noted(STAGES[kind]()[world.rank]), gpipe(2, COUNT), inputs)


def released_by_1f1b(world, count):
    x = torch.rand(ROWS, WIDTH, dtype=torch.float64)
    return released(world, Noted(Linear()), one_f_one_b(world.size, count), [x] * count)


@pytest.mark.parametrize("count", (2, 7))
def test_1f1b_releases_what_has_surely_arrived(ranks, count):
    size = ROWS * WIDTH * torch.float64.itemsize
    assert ranks(4).run(released_by_1f1b, count) == [size * min(count, 3 - rank) for rank in range(4)]


@pytest.mark.parametrize(
    "kind, count",
    (
        ("saved by nobody", COUNT),
        ("a view of a part", COUNT),  # all of the memory that the view is in
        ("a sigmoid, which autograd saves", 0),
        ("a relu, which autograd saves", 0),
    ),
)
def test_what_autograd_saved_stays_and_the_rest_goes(ranks, kind, count):
    assert ranks(2).run(released_of, kind) == [count * ROWS * WIDTH * torch.float64.itemsize, 0]
