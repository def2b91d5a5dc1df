"""Gradients in float32 with parameters in 16 bits: sums lose nothing, and twice the bytes travel."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from minitrain.comm import Ledger
from minitrain.zero.full.stage1 import Zero1
from minitrain.zero.full.stage2 import Zero2
from minitrain.zero.full.stage3 import Zero3

STAGES = (Zero1, Zero2, Zero3)


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


@pytest.mark.parametrize("stage", STAGES)
def test_sums_in_32_bits_lose_nothing(ranks, stage):
    found = ranks(2).run(summed, stage, torch.float32)
    for dtype, gradient, sent, masters in found:
        assert dtype == torch.float32
        assert gradient == [260.0] * 5
        assert masters == [1 - 260.0] * 5
        assert sent == 4 * 10 * (1 if stage is Zero1 else 5)


@pytest.mark.parametrize("stage", STAGES)
def test_sums_in_16_bits_stop_and_send_half(ranks, stage):
    for dtype, gradient, sent, _ in ranks(2).run(summed, stage, None):
        assert dtype == torch.bfloat16
        assert gradient == [256.0] * 5  # 256 + 1 is 256 in bfloat16, four times
        assert sent == 2 * 10 * (1 if stage is Zero1 else 5)


def like_fsdp(world, stage):
    """Weights after three steps, ours and those of FSDP2 with the same policy."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    model = stage(ours, torch.optim.SGD, None, torch.bfloat16, reduce_dtype=torch.float32, lr=0.125)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
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
    exact = torch.cat([parameter.full_tensor().flatten() for parameter in theirs.parameters()])
    whole = torch.cat([gathered(world, line) for line in model.lines if line.trainable])
    return float((whole.sort().values - exact.sort().values).abs().max())


def gathered(world, line):
    """A line's masters from all ranks, without padding."""
    parts = [torch.empty_like(line.master) for _ in range(world.size)]
    torch.distributed.all_gather(parts, line.master.detach())
    return torch.cat(parts)[: line.partition.elements]


@pytest.mark.parametrize("stage", STAGES)
def test_weights_are_those_of_fsdp2_with_the_same_policy(ranks, stage):
    # On two ranks a sum is the same in either order, so nothing but the order of a layer's own products could differ.
    assert max(ranks(2).run(like_fsdp, stage)) <= 1e-6


def refused(world):
    with pytest.raises(ValueError, match=r"reduce_dtype=torch.int32 is not floating; use torch.bfloat16"):
        Zero1(Ones(), torch.optim.SGD, None, reduce_dtype=torch.int32, lr=0.1)


def test_whole_numbers_are_refused(ranks):
    ranks(2).run(refused)
