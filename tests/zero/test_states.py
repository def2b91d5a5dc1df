"""State dicts of a sharded module: rounded or not, they reach what the optimizer steps."""

from __future__ import annotations

import pytest
import torch

from minitrain.zero import Zero1, Zero2
from tests.zero.models import gpt, train


def masters(world, stage):
    def half(seed):
        return stage(gpt(seed=seed).float(), torch.optim.AdamW, compute_dtype=torch.bfloat16, lr=0.01)

    model, rounded = half(0), half(3)
    train(model, world.rank, steps=2)
    full = model.full_state_dict()
    assert full["head.weight"].dtype == torch.float32
    rounded.module.load_state_dict(full)
    for name, value in rounded.full_state_dict().items():
        assert torch.equal(value, full[name].bfloat16().float()), name


@pytest.mark.parametrize("stage", (Zero1, Zero2))
def test_a_module_s_state_dict_reaches_the_masters(ranks, stage):
    ranks(2).run(masters, stage)
