"""The dtype in which gradients are added up: float32 for parameters of 16 bits, bfloat16 for those of 32."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from minitrain.comm import Ledger
from minitrain.data_parallel import DataParallel


class Ones(nn.Module):
    """A loss whose gradient is the input, element by element."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, dtype=dtype))

    def forward(self, x):
        return (self.weight * x).sum()


def summed(world, dtype, reduce_dtype):
    """The gradient after micro-batches of 256, 1, 1, 1 and 1 on each rank, and the bytes that traveled."""
    model = DataParallel(Ones(dtype), reduce_dtype=reduce_dtype)
    parts = (256.0, 1.0, 1.0, 1.0, 1.0)
    with Ledger() as ledger:
        for number, value in enumerate(parts):
            with nullcontext() if number == len(parts) - 1 else model.no_sync():
                model(torch.full((10,), value, dtype=dtype)).backward()
        model.synchronize()
    gradient = model.module.weight.grad
    return gradient.dtype, gradient.tolist(), ledger.payload("all_reduce")


@pytest.mark.parametrize(
    "dtype, reduce_dtype, total, item",
    [
        (torch.bfloat16, torch.float32, 260.0, 4),
        (torch.bfloat16, None, 256.0, 2),  # 256 + 1 is 256 in bfloat16, four times
        # 260 is added up exactly; half of it, and both halves together, are numbers of bfloat16: 130 and 260.
        (torch.float32, torch.bfloat16, 260.0, 2),
    ],
)
def test_sums_in_32_bits_lose_nothing_and_send_twice_as_much(ranks, dtype, reduce_dtype, total, item):
    held = torch.bfloat16 if reduce_dtype is None else torch.float32
    expected = held, [total] * 10, item * 11  # and the parameter's flag
    assert ranks(2).run(summed, dtype, reduce_dtype) == [expected] * 2


def like_ddp(world):
    """Whether gradients are those of DDP with its hook for bfloat16, to the bit."""
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    model, ddp = DataParallel(ours, reduce_dtype=torch.bfloat16), DistributedDataParallel(theirs)
    # DDP refuses the hook by its name where there is no NCCL, though gloo can do what it does.
    ddp.register_comm_hook(dist.group.WORLD, lambda group, bucket: bf16_compress_hook(group, bucket))
    same = True
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + world.rank))
        for each in (model, ddp):
            each.zero_grad()
            each(x).square().mean().backward()
        model.synchronize()
        same &= all(torch.equal(a.grad, b.grad) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    return same


def test_gradients_are_those_of_ddp_with_its_hook(ranks):
    # On two ranks a sum is the same in either order.
    assert ranks(2).run(like_ddp) == [True, True]


def refused(world):
    with pytest.raises(ValueError, match=r"reduce_dtype=torch.int32 is not floating; use torch.bfloat16"):
        DataParallel(Ones(), reduce_dtype=torch.int32)
    with pytest.raises(ValueError, match=r"reduce_dtype differs between ranks"):
        DataParallel(Ones(), reduce_dtype=torch.bfloat16 if world.rank else None)


def test_bad_input(ranks):
    ranks(2).run(refused)
