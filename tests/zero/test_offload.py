"""Offloading: which bytes are where, and which cross. That nothing else changes is in test_sharded.py."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minitrain.comm.memory import optimizer_states
from minitrain.lessons.zero.crossings import Crossings
from minitrain.zero import ZeroOffload
from tests.zero.models import gpt, part, train


class Mixing(TorchDispatchMode):
    """Notes each operation on tensors of both pools; on a GPU all but copies would be errors."""

    def __init__(self, model):
        super().__init__()
        self.found = []
        self._model = model

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        used = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        pools = [
            {t.untyped_storage()._cdata for t in members() if t is not None}
            for members in (self._model._on_device, self._model._on_host)
        ]
        assert not pools[0] & pools[1], "a storage lies in both pools"
        if all(used & pool for pool in pools):
            self.found.append(func.name())
        return func(*args, **(kwargs or {}))


def watch(model):
    """Counts what crosses: masters, gradients' shards, states, and what the host's pool hands out are on the host."""
    shards = [collector.shard for collector in model._collectors]
    crossings = Crossings([*(line.master for line in model.lines), *shards, *optimizer_states(model.optimizer)])
    empty = model.host_pool.empty

    def watched(like):
        crossings.add(made := empty(like))
        return made

    model.host_pool.empty = watched
    return crossings


def apart(world, dtype):
    module = gpt(seed=0).float()
    module.blocks[0].requires_grad_(False)
    model = ZeroOffload(module, torch.optim.AdamW, None, dtype, lr=0.01)
    train(model, world.rank, steps=1)
    with Mixing(model) as mixing, watch(model) as crossings:
        with model.no_sync():
            model(*part(world.rank))[1].backward()
        model(*part(world.rank))[1].backward()
        model.synchronize()
        model.clip_grad_norm(0.1)
        model.step()
        model.zero_grad()
    assert set(mixing.found) <= {"aten::copy_"}
    item = torch.empty(0, dtype=dtype or torch.float32).element_size()
    shards = sum(line.partition.shard_elements for line in model.lines if line.trainable)
    numbers = 8  # for clipping: the sum of squares back, the factor out
    assert crossings.out == 2 * item * shards + numbers, "each of two micro-batches"
    assert crossings.back == item * shards + numbers
    assert model.device_pool.bytes == sum(line.flat.nbytes for line in model.lines)
    counters = 4 * sum(line.trainable for line in model.lines)
    assert model.host_pool.bytes == (item + 4 + 8) * shards + counters


@pytest.mark.parametrize("dtype", (None, torch.bfloat16), ids=str)
def test_pools_share_nothing_and_every_crossing_is_counted(ranks, dtype):
    ranks(3).run(apart, dtype)
