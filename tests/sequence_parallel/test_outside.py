"""Norms, positions and head on sequence shards: a block against DTensor's, and marks that are not lost."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.style import ParallelStyle

from minitrain.models.config import GPTConfig
from minitrain.models.gpt import GPT
from minitrain.sequence_parallel.megatron import parallelize
from minitrain.tensor_parallel.full.parameter_layout import is_partial, sum_partial_gradients
from tests.tensor_parallel.test_parallelize import QWEN


def gpt(ranks, **choices):
    sizes = {"positions": 3 * ranks, "layers": 1, "hidden": 4 * ranks, "heads": 2 * ranks}
    made = GPT(GPTConfig(13, **sizes, **choices), seed=0).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters()):  # else biases would be 0 and norms 1
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
            parameter.copy_(drawn / parameter.shape[-1] ** 0.5)
    return made


def beside_dtensor(world, keep_gathered):
    """A block's output and all its gradients, after sums, are those of torch's SequenceParallel."""
    model = gpt(world.size)
    theirs = copy.deepcopy(model.blocks[0])
    parallelize(model, keep_gathered=keep_gathered)
    ours = model.blocks[0]
    gathered = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": gathered,
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        "attention.output": RowwiseParallel(output_layouts=Shard(1)),
        "mlp_norm": SequenceParallel(),
        "mlp": gathered,
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(theirs, init_device_mesh("cpu", (world.size,)), plan)
    generator = torch.Generator().manual_seed(world.rank)
    x = torch.randn(2, 3, 4 * world.size, generator=generator, dtype=torch.float64)
    results = []
    for block in (ours, theirs):
        mine = x.clone().requires_grad_()
        y = block(mine)
        y.square().sum().backward()
        results.append([y.detach(), mine.grad])
    sum_partial_gradients(ours)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for (name, mine), its in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        expected = its.grad
        assert isinstance(expected, DTensor) and isinstance(its, DTensor)
        local = expected.redistribute(placements=its.placements).to_local()  # its gradients of norms are summands too
        torch.testing.assert_close(mine.grad, local, rtol=0, atol=1e-11, msg=lambda m: f"{name}: {m}")  # noqa: B023


@pytest.mark.parametrize("keep_gathered", (True, False))
def test_a_block_is_that_of_dtensor(ranks, keep_gathered):
    ranks(2).run(beside_dtensor, keep_gathered)


def marks(world, choices):
    """How many parameters are partial: at first, copied, made anew, and with others put in their place."""
    model = gpt(world.size, **choices)
    parallelize(model)
    found = [sum(map(is_partial, model.parameters()))]
    copied = copy.deepcopy(model)
    found.append(sum(map(is_partial, copied.parameters())))
    copied.to_empty(device="cpu")
    found.append(sum(map(is_partial, copied.parameters())))
    copied.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    found.append(sum(map(is_partial, copied.parameters())))
    inputs = torch.arange(3 * world.size).unsqueeze(0)
    same = torch.equal(copied(inputs, inputs)[1], model(inputs, inputs)[1])
    return found, same


@pytest.mark.parametrize(
    "choices, partial",
    (
        ({}, 1 + 4 + 2 + 2),  # positions; of the layer two norms and two row biases; the last norm
        (QWEN, 4 + 1),  # of the layer two norms and those of queries and keys; the last norm
    ),
    ids=("GPT-2", "Qwen"),
)
def test_marks_outlive_copies(ranks, choices, partial):
    for found, same in ranks(2).run(marks, choices):
        assert found == [partial] * 4 and same
