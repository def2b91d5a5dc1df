"""Gradients that are added up in float32 or bfloat16, with parameters in bfloat16: the weights are FSDP2's."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from minitrain.comm import Ledger
from minitrain.zero import Zero1, Zero2, Zero3


def like_fsdp(world, stage, reduce_dtype):
    """Masters after three steps, ours and those of FSDP2 with the same policy."""
    torch.manual_seed(0)
    ours, theirs = (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    model = stage(ours, torch.optim.SGD, None, torch.bfloat16, reduce_dtype=reduce_dtype, lr=0.125)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for layer in (*theirs, theirs):
        fully_shard(layer, mp_policy=policy)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.125)
    for step in range(3):
        first, last = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(10 * step + world.rank))
        if reduce_dtype is not None:  # FSDP2 adds micro-batches up in the masters' dtype
            with model.no_sync():
                model(first).square().mean().backward()
            theirs(first).square().mean().backward()
        with Ledger() as ledger:
            model(last).square().mean().backward()
            model.synchronize()
        theirs(last).square().mean().backward()
        elements = sum(line.partition.elements for line in model.lines)
        assert ledger.payload("reduce_scatter") == (2 if reduce_dtype is None else 4) * elements
        for each in (model, optimizer):
            each.step()
            each.zero_grad()
    full = model.full_state_dict()
    for name, expected in theirs.named_parameters():
        # On two ranks a sum is the same in either order: only a layer's own products could be added in another.
        torch.testing.assert_close(full[name], expected.full_tensor(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", (Zero1, Zero2, Zero3))
@pytest.mark.parametrize("reduce_dtype", (torch.float32, None), ids=str)
def test_weights_are_those_of_fsdp2_with_the_same_policy(ranks, stage, reduce_dtype):
    ranks(2).run(like_fsdp, stage, reduce_dtype)
