"""Attention and MLP over several ranks against DTensor; shared heads."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from minitrain.comm import Ledger
from minitrain.models.config import GPTConfig
from minitrain.models.gpt import Block
from minitrain.tensor_parallel import ParallelAttention, ParallelMLP
from minitrain.tensor_parallel.full.parameter_layout import is_partial, shards, sum_partial_gradients
from tests.tensor_parallel.test_linear import close, drawn


def block(heads, kv_heads=None, kind="sdpa", head_size=2):
    made = Block(GPTConfig(hidden=heads * head_size, heads=heads, kv_heads=kv_heads, attention=kind)).double()
    with torch.no_grad():
        for seed, parameter in enumerate(made.parameters()):
            parameter.copy_(drawn(*parameter.shape, seed=seed))
    return made


def in_parallel(reference, group=None, mlp=ParallelMLP):
    made = copy.deepcopy(reference)
    made.attention = ParallelAttention(reference.attention, group)
    made.mlp = mlp(reference.mlp, group)
    return made


def as_dtensor_does_it(world):
    ours = in_parallel(block(4, 2))
    theirs = block(4, 2)
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    plan |= {"attention.output": RowwiseParallel(), "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel()}
    parallelize_module(theirs, init_device_mesh("cpu", (world.size,)), plan)
    x, other = (drawn(2, 3, 8).requires_grad_() for _ in range(2))
    for module, given in ((ours, x), (theirs, other)):
        module(given).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-9, atol=1e-9)
    for (name, mine), distributed in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        its = distributed.grad.to_local() if hasattr(distributed.grad, "to_local") else distributed.grad
        torch.testing.assert_close(mine.grad, its, rtol=1e-9, atol=1e-9, msg=lambda m: f"{name}: {m}")  # noqa: B023


def unsummed(world):
    """Break it: without sum_partial_gradients each rank has the gradient of its own queries alone."""
    reference = block(4, 2)
    parallel = in_parallel(reference)
    for module in (parallel, reference):
        module(drawn(1, 3, 8)).square().sum().backward()
    marked = [name for name, parameter in parallel.named_parameters() if is_partial(parameter)]
    pieces = {shards(parameter, world.size) for parameter in parallel.parameters() if is_partial(parameter)}
    with pytest.raises(AssertionError, match=r"attention.key.weight: Tensor-likes are not close"):
        close(parallel, reference, 1e-9)
    with Ledger() as ledger:
        sum_partial_gradients(parallel)
    close(parallel, reference, 1e-9)
    return marked, pieces, ledger.calls("all_reduce")


def test_shared_heads_need_their_gradients_added(ranks):
    names = [f"attention.{name}.{part}" for name in ("key", "value") for part in ("weight", "bias")]
    assert ranks(4).run(unsummed) == [(names, {2}, 1)] * 4


@pytest.mark.parametrize("case", (as_dtensor_does_it,))
def test_on_two_ranks(ranks, case):
    ranks(2).run(case)
