"""Backward in two parts gives the bits of backward in one, and keeps no more than it must."""

from __future__ import annotations


import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from minitrain.pipeline_parallel.weight_gradients import SplitBackward, finish


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 5, bias=False), nn.GELU(), nn.Linear(5, 3).requires_grad_(False)
    )


def two_parts(module, x, tasks):
    split = SplitBackward(module)
    with split.into(tasks):
        result = module(x)
        result.square().sum().backward()


@pytest.mark.parametrize("shape", ((4,), (3, 4), (2, 3, 4)))
def test_the_same_bits(shape):
    module, reference = model(), model()
    for seed in range(2):  # the second adds to what is there
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        tasks = []
        two_parts(module, ours, tasks)
        reference(theirs).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)
        assert len(tasks) == 2  # the third layer is frozen
        finish(tasks)
        assert not tasks
        for mine, its in zip(module.parameters(), reference.parameters(), strict=True):
            assert (mine.grad is None) == (its.grad is None)
            if its.grad is not None:
                torch.testing.assert_close(mine.grad, its.grad, rtol=0, atol=0)


def test_only_the_first_part_is_done_at_once_and_hooks_are_called():
    module, tasks, called = model(), [], []
    module[0].weight.register_post_accumulate_grad_hook(lambda _: called.append("weight"))
    two_parts(module, torch.randn(3, 4, requires_grad=True), tasks)
    assert module[0].weight.grad is None and module[0].bias.grad is None and called == []
    assert module[1].weight.grad is not None  # a norm's is no product that could wait
    finish(tasks)
    assert called == ["weight"]


def test_recomputed_layers():
    module, reference = model(), model()
    split, tasks = SplitBackward(module), []
    x = torch.randn(3, 4)
    with split.into(tasks):
        checkpoint(module, x, use_reentrant=False).square().sum().backward()
    finish(tasks)
    reference(x).square().sum().backward()
    torch.testing.assert_close(module[0].weight.grad, reference[0].weight.grad, rtol=0, atol=0)
