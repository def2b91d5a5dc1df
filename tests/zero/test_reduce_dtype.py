"""Gradients in float32 with parameters in 16 bits: sums lose nothing, and twice the bytes travel."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from minitrain.comm import Ledger
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Zero2
from minitrain.zero.full.stage3 import Zero3

stages = pytest.mark.parametrize("stage", (Zero1, Zero2, Zero3))


class Ones(nn.Module):
    """A loss whose gradient is the input, element by element."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10))

    def forward(self, x):
        return (self.weight * x).sum()


def summed(world, stage, reduce_dtype):
    """The gradient's shard after micro-batches of 256, 1, 1, 1 and 1 on each rank, and the bytes that travelled."""
    model = stage(Ones(), torch.optim.SGD, None, torch.bfloat16, reduce_dtype=reduce_dtype, lr=1.0)
    parts = (256.0, 1.0, 1.0, 1.0, 1.0)
    with Ledger() as ledger:
        for number, value in enumerate(parts):
            with nullcontext() if number == len(parts) - 1 else model.no_sync():
                model(torch.full((10,), value)).backward()
        model.synchronize()
    (line,) = model.lines
    gradient = line.gradient[: line.partition.elements // world.size]
    result = gradient.dtype, gradient.tolist(), ledger.payload("reduce_scatter")
    model.step()
    return (*result, line.master.tolist())


@stages
@pytest.mark.parametrize(
    "reduce_dtype, found, total, size",
    [
        (torch.float32, torch.float32, 260.0, 4),
        (None, torch.bfloat16, 256.0, 2),  # 256 + 1 is 256 in bfloat16, four times
    ],
)
def test_sums_in_32_bits_lose_nothing_and_send_twice_as_much(ranks, stage, reduce_dtype, found, total, size):
    sent = size * 10 * (1 if stage is Zero1 else 5)
    for result in ranks(2).run(summed, stage, reduce_dtype):
        assert result == (found, [total] * 5, sent, [1 - total] * 5)


def like_fsdp(world, stage, reduce_dtype):
    """Masters after three steps, ours and those of FSDP2 with the same policy."""
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    model = stage(ours, torch.optim.SGD, None, torch.bfloat16, reduce_dtype=reduce_dtype, lr=0.125)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for layer in theirs:
        fully_shard(layer, mp_policy=policy)
    fully_shard(theirs, mp_policy=policy)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.125)
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + world.rank))
        for each in (model, theirs):
            each(x).square().mean().backward()
        model.synchronize()
        model.step()
        model.zero_grad()
        optimizer.step()
        optimizer.zero_grad()
    full = model.full_state_dict()
    for name, expected in theirs.named_parameters():
        # On two ranks a sum is the same in either order: only a layer's own products could be added in another.
        torch.testing.assert_close(full[name], expected.full_tensor(), rtol=0, atol=1e-6)


@stages
@pytest.mark.parametrize("reduce_dtype", (torch.float32, None), ids=str)
def test_weights_are_those_of_fsdp2_with_the_same_policy(ranks, stage, reduce_dtype):
    ranks(2).run(like_fsdp, stage, reduce_dtype)
